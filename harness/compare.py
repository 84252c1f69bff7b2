"""Two or more sets of records side by side, each problem's times and each set's scores."""

from collections import Counter
from pathlib import PurePath

from rich.console import Console
from rich.table import Table

from harness import records, scores, tables
from harness.errors import UsageError


def comparison(groups: list[tuple[str, list[dict]]]) -> dict:
    """`tables.comparison` with the scores of each set under "scores", as JSON.

    Where a set holds several candidates of one problem and setting, each is a row of its own, told
    by its sample number or file name. Imported results (KernelBench's) take the settings that
    their files do not tell from the first record of the same problem in the other sets. Raises
    UsageError when no problem is in all sets and each set has one candidate a problem at most.
    """
    filled = [(label, _filled(part, groups)) for label, part in groups]
    several = {
        key[0] for _, part in filled for key, count in Counter(map(_key, part)).items() if count > 1
    }
    named = [(label, [_named(r) if r["problem"] in several else r for r in part])
             for label, part in filled]  # fmt: skip
    try:
        result = tables.comparison(named)
    except UsageError:
        if not several:
            raise
        result = {"rows": [], "left_out": {}}  # no candidate in common: the scores still tell
    result["scores"] = {
        label: scores.summary(part)
        for label, part in filled
        if not all(record["verdict"] == "baseline" for record in part)
    }
    result["imported"] = [
        label for label, part in groups if any("imported" in record for record in part)
    ]
    return result


def _key(record: dict) -> tuple:
    return (record["problem"], *records.setting(record))


def _filled(part: list[dict], groups: list[tuple[str, list[dict]]]) -> list[dict]:
    """Imported records with settings; those of this harness unchanged."""
    ours = {}
    for _, other in groups:
        for record in other:
            if "imported" not in record:
                ours.setdefault(record["problem"], record)
    filled = []
    for record in part:
        model = ours.get(record["problem"])
        if "imported" in record and model:
            lent = dict(zip(records.SETTINGS, records.setting(model), strict=True))
            told = {key: value for key, value in record.items() if value is not None}
            record = {**record, **lent, **told}
        filled.append(record)
    return filled


def _named(record: dict) -> dict:
    if record.get("sample") is not None:
        name = f"sample {record['sample']}"
    else:
        name = PurePath(record.get("solution") or "?").stem
    return {**record, "problem": f"{record['problem']} {name}"}


def print_comparison(console: Console, result: dict) -> None:
    """The tables of `comparison`."""
    tables.print_comparison(console, result)
    for label in result["imported"]:
        console.print(
            f"imported: {label}; settings that its file does not tell are taken to be those of "
            "the other records, and its times are means by another clock",
            markup=False,
            soft_wrap=True,
        )
    if result["scores"]:
        print_scores(console, result["scores"])


def print_scores(console: Console, found: dict[str, dict]) -> None:
    """Scores of each set, and its fast_p."""
    table = Table("set", "accepted", "minimum", "geometric mean")
    curve = Table("fast_p at p =", *(f"{p:g}" for p in scores.THRESHOLDS))
    for label, score in found.items():
        counted = f"{score['accepted']} / {score['all']}"
        table.add_row(label, counted, _times(score["minimum"]), _times(score["geometric_mean"]))
        curve.add_row(label, *(_share(value) for value in score["fast_p"].values()))
    console.print(table)
    console.print(curve)
    console.print(
        "speedups over the fastest baseline, n/a unless all were accepted; fast_p: share of all "
        "that were accepted with a speedup above p",
        soft_wrap=True,
    )


def _times(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.2f}x"


def _share(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.0%}"
