"""What a solution says of itself: what it fuses, how, and what it leaves to PyTorch.

Taken from the docstring of the solution's file, which is read and never run.
"""

import ast
import hashlib
from dataclasses import dataclass
from pathlib import Path

from harness.catalog import ROOT

_LEFT = "Left to PyTorch"
_GENERATED = "Generated, do not edit"
_RUNS = "On a CUDA tensor"  # what generated solutions have in common begins here
_MANY = 3  # paragraphs of a file that somebody wrote


@dataclass(frozen=True)
class Story:
    """`head` is the first line, `how` further paragraphs, `left` the operators that stay PyTorch's
    (None where the file does not tell), `changed` whether the file has changed since the record.
    """

    head: str
    how: tuple[str, ...]
    left: tuple[str, ...] | None
    changed: bool


def story(record: dict, folder: Path | None = None) -> Story | None:
    """None where the file is not there, or has no docstring.

    It is looked for in the checkout, then beside the record in `folder`; nowhere else, whatever
    path the record names.
    """
    path = _file(str(record.get("solution") or ""), folder)
    if path is None:
        return None
    content = path.read_bytes()
    try:
        told = ast.get_docstring(ast.parse(content))
    except (SyntaxError, ValueError):
        return None
    if not told:
        return None
    changed = hashlib.sha256(content).hexdigest() != record.get("solution_sha256")
    return _story(told, changed)


def _file(name: str, folder: Path | None) -> Path | None:
    for base in (ROOT, folder):
        path = (base / name).resolve() if base and name.endswith(".py") else None
        if path and path.is_relative_to(base.resolve()) and path.is_file():
            return path
    return None


def _story(told: str, changed: bool) -> Story:
    head, *rest = [part.strip() for part in told.split("\n\n")]
    if not any(part.startswith(_GENERATED) for part in rest):
        return Story(head, tuple(rest[:_MANY]), None, changed)
    how: list[str] = []
    for part in rest:
        if part.startswith((_RUNS, _LEFT, _GENERATED)):
            break
        how.append(" ".join(part.split()))
    rows = [part for part in rest if part.startswith(_LEFT)]
    left = [line.strip() for part in rows for line in part.splitlines()[1:]]
    return Story(
        (head.partition(": ")[2] or head).removesuffix("."), tuple(how), tuple(left), changed
    )
