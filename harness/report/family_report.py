"""The records of a family run as one table: every reference with a transposed convolution."""

import json
from pathlib import Path

from harness.report import doubts, records, report_data, scores

_PASSES = {"forward": "", "forward and backward": "-backward"}


def tables(results: Path) -> str:
    """One table for each device that has records in <device>/family/, or <device>-backward/family/,
    a row for each problem.
    """
    folders = results.glob("*/family")
    devices = sorted({path.parent.name.removesuffix("-backward") for path in folders})
    return "\n".join(_table(results, device) for device in devices)


def _table(results: Path, device: str) -> str:
    found = {
        told: _records(results / (device + suffix) / "family") for told, suffix in _PASSES.items()
    }
    every = {name: record for part in found.values() for name, record in part.items()}
    lines = ["| problem | input | " + " | ".join(map(_heads, _PASSES)) + " |", "|" + " --- |" * 8]
    for name in sorted(every, key=lambda name: report_data.make_row(every[name]).order):
        shape = " × ".join(map(str, every[name]["input_shape"]))
        cells = [_cells(part.get(name)) for part in found.values()]
        lines.append(f"| {name} | {shape} | {' | '.join(cells)} |")
    told = [line for line in (_footer(told, part) for told, part in found.items()) if line]
    return "\n".join([*lines, "", *told]) + "\n"


def _records(folder: Path) -> dict[str, dict]:
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    return {record["problem"]: record for record in found}


def _heads(told: str) -> str:
    return f"{told} ms (IQR) | fastest PyTorch ms | over it"


def _cells(record: dict | None) -> str:
    if record is None:
        return "not recorded | – | –"
    ms, fastest = record["ms"], record["fastest"]
    if record["verdict"] != "accepted" or not ms:
        return f"{record['verdict']} | – | –"
    ours = ms["solution"]
    time = f"{ours['median']:.3g} ({ours['iqr']:.2g}){doubts.mark(doubts.is_wide(ours))}"
    if not fastest:
        return f"{time} | – | –"
    baseline = fastest["baseline"]
    return (
        f"{time} | {ms[baseline]['median']:.3g} ({report_data.BASELINES[baseline]}) "
        f"| **{fastest['speedup']:.2f}×**"
    )


def _footer(told: str, part: dict[str, dict]) -> str:
    if not part:
        return ""
    found = list(part.values())
    summary = scores.summary(found)
    line = f"{told.capitalize()}: {summary['accepted']} of {summary['all']} accepted"
    if summary["minimum"] is not None:
        line += f", at least {summary['minimum']:.2f}×"
        line += f", geometric mean {summary['geometric_mean']:.2f}×"
    legend = [doubts.LEGEND] * any(map(doubts.found, found))
    dates: dict[str, set] = {}
    for record in found:
        dates.setdefault(_about(record), set()).add(record["date"])
    about = [f"{name}; {', '.join(sorted(days))}" for name, days in sorted(dates.items())]
    return " ".join(f"{part}." for part in (line, "; ".join(about), *legend))


def _about(record: dict) -> str:
    tf32 = f", TF32 {record['tf32']}" if record["versions"]["gpu"] else ""
    return f"{records.machine(record)}; {record['dtype']}{tf32}"
