"""Prints comparisons and scores; at 80 columns, too, every row can be told from the others."""

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from harness.names import SHORT_DTYPES
from harness.report import scores
from harness.report.compare import NOT_TOLD, WITHOUT_EFFECT
from harness.report.labels import shortened

_BORDER = 3  # of a cell: a line and two blanks
_LEAST_LABEL = 12
_HEADS = {"backward": "passes", "eval": "mode"}
_NUMBERS = ("ms", "ratio", "speedup")
_SHORT = {dtype: short for short, dtype in SHORT_DTYPES.items()}


def print_comparison(console: Console, result: dict) -> None:
    """The tables of `compare.comparison`."""
    names = list(result["made_by"])
    if result["rows"]:
        short = _print_rows(console, result, names)
    else:
        short = dict(zip(names, shortened(names, _room(console)), strict=True))
    for label, keys in result["left_out"].items():
        _tell(console, f"not in all: {short[label]}: {', '.join(keys)}")
    _print_makers(console, result["made_by"], short)
    for label in result["imported"]:
        _tell(
            console,
            f"imported: {short[label]}; settings that its file does not tell are {NOT_TOLD} and "
            "taken to fit the other records, and its times are means by another clock",
        )
    if result["scores"]:
        print_scores(console, result["scores"])
    if any(not name.endswith(short[name]) for name in names):  # cut, or numbered
        _tell(console, "records: " + "; ".join(f"{short[name]} is {name}" for name in names))


def _tell(console: Console, text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)


def _print_rows(console: Console, result: dict, names: list[str]) -> dict[str, str]:
    """The main table; returns the label of each set as it was shown."""
    columns = ["problem", *result["differs"]]
    verdicts = {entry["verdict"] for row in result["rows"] for entry in row["entries"]}
    cells = []
    for row in result["rows"]:
        for index, entry in enumerate(row["entries"]):
            shown = [_shown(name, entry["setting"][name]) for name in result["differs"]]
            numbers = (
                _or_dash(entry["ms"], "{:.4g}"),
                _or_dash(entry["ratio"], "{:.2f}x"),
                _or_dash(entry["speedup"], "{:.2f}x"),
            )
            problem = row["problem"] if index == 0 else ""
            verdict = [entry["verdict"]] * (len(verdicts) > 1)
            cells.append([problem, *shown, entry["set"], *verdict, *numbers])
    heads = [_HEADS.get(name, name) for name in columns] + ["record"]
    heads += ["verdict"] * (len(verdicts) > 1) + list(_NUMBERS)
    at = len(columns)
    others = [line[:at] + line[at + 1 :] for line in [heads, *cells]]
    taken = sum(max(map(cell_len, column)) + _BORDER for column in zip(*others, strict=True))
    room = max(console.width - taken - _BORDER - 1, _LEAST_LABEL)
    short = dict(zip(names, shortened(names, room), strict=True))
    table = Table()
    for head in heads:
        table.add_column(head, no_wrap=head not in result["differs"], overflow="fold")
    for line in cells:
        table.add_row(*line[:at], short[line[at]], *line[at + 1 :])
    if result["common"]:
        told = {n: v for n, v in result["common"].items() if v != WITHOUT_EFFECT}
        words = [f"{_HEADS.get(name, name)} {_shown(name, value)}" for name, value in told.items()]
        words += [f"verdict {verdict}" for verdict in verdicts if len(verdicts) == 1]
        _tell(console, "all: " + ", ".join(words))
    console.print(table)
    _tell(
        console,
        "ratio: time of the first over time of this one, above 1 this one is faster; speedup: over "
        "the fastest baseline of the same run",
    )
    timed = [entry for row in result["rows"] for entry in row["entries"] if entry["ms"]]
    if "batch" in result["differs"] and any(entry["ratio"] is None for entry in timed):
        _tell(console, "no ratio where the batches differ, which is another amount of work")
    return short


def _shown(name: str, value) -> str:
    if value is None:
        return NOT_TOLD
    if name == "dtype":
        return _SHORT.get(value, str(value))
    if name == "device":
        return str(value).removeprefix("nvidia-")
    words = {"backward": ("forward", "both"), "eval": ("training", "eval")}
    return words[name][bool(value)] if name in words else str(value)


def _or_dash(value, form: str) -> str:
    return "-" if value is None else form.format(value)


def _print_makers(console: Console, made_by: dict[str, dict], short: dict[str, str]) -> None:
    """Commits and versions, where the sets' differ."""
    for what in ("commit", "PyTorch"):
        told = {label: makers[what] for label, makers in made_by.items()}
        if len(set(map(tuple, told.values()))) > 1:
            parts = (f"{short[n]}: {', '.join(v) or 'not told'}" for n, v in told.items())
            _tell(console, f"{what}: " + "; ".join(parts))


def print_scores(console: Console, found: dict[str, dict]) -> None:
    """Scores of each set, and its fast_p."""
    table = Table("set", "accepted", "minimum", "geometric mean")
    curve = Table("fast_p at p =", *(f"{p:g}" for p in scores.THRESHOLDS))
    names = shortened(list(found), _room(console))
    for label, score in zip(names, found.values(), strict=True):
        counted = f"{score['accepted']} / {score['all']}"
        table.add_row(label, counted, _times(score["minimum"]), _times(score["geometric_mean"]))
        curve.add_row(label, *(_share(value) for value in score["fast_p"].values()))
    console.print(table)
    console.print(curve)
    _tell(
        console,
        "speedups over the fastest baseline, n/a unless all were accepted; fast_p: share of all "
        "that were accepted with a speedup above p",
    )


def _room(console: Console) -> int:
    """For a label beside the shares of the fast_p table, each of up to four characters."""
    return max(console.width - len(scores.THRESHOLDS) * (4 + _BORDER) - _BORDER - 1, _LEAST_LABEL)


def _times(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.2f}x"


def _share(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.0%}"
