"""Labels that fit into a column: cut from the left, where paths are alike, and still distinct."""

from pathlib import PurePath

CUT = "…"


def shortened(labels: list[str], width: int) -> list[str]:
    """One label of at most `width` characters (4 at least) for each of `labels`, no two alike.

    Leading folders that all share go first; what is still too long loses its beginning. Where that
    leaves two alike, all begin with their number in the list, counted from 1.
    """
    width = max(width, 4)
    short = [_cut(label, width) for label in _without_common_folders(labels)]
    if len(set(short)) == len(short):
        return short
    marks = [f"{number}:" for number in range(1, len(labels) + 1)]
    room = max(width - max(map(len, marks)), 1)
    return [mark + _cut(label, room) for mark, label in zip(marks, labels, strict=True)]


def _without_common_folders(labels: list[str]) -> list[str]:
    parts = [PurePath(label).parts for label in labels]
    shortest = min(map(len, parts), default=0)
    shared = 0
    while shared + 1 < shortest and len({part[shared] for part in parts}) == 1:
        shared += 1
    if not shared or len(labels) < 2:
        return labels
    return [str(PurePath(*part[shared:])) for part in parts]


def _cut(label: str, width: int) -> str:
    return label if len(label) <= width else CUT + label[len(label) - width + len(CUT) :]
