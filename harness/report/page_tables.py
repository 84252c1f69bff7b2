"""Tables of the pages that join the records of several folders of results/, as Markdown.

Each lies between the lines `<!-- NAME -->` and `<!-- /NAME -->`: NAME is `headline` (problem, pass
and device), `shares` (how near each setting comes to the floor), `errors` (beside PyTorch's),
`index` (every folder), `host_time` (what a call costs the host), `gradients` (each by itself),
`shapes` (other layers), `family` (references of a family run) or `profile` (the GPU's counters).
"""

import json
import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from harness.errors import UsageError
from harness.names import CONV2D
from harness.report import (
    doubts,
    family_report,
    profile_report,
    records,
    report_data,
    shapes_report,
)

DEVICES = ("nvidia-h200", "nvidia-h100", "cpu")
NOT_RECORDED = "not recorded"
_PASSES = {"forward": "", "training": "-backward"}
_HOST_MODES = {
    "no_grad": "no_grad: ours / eager µs (ratio)",
    "grad": "gradients enabled",
    "backward": "forward + backward",
}
_ERRORS = (
    "nvidia-h200",
    "nvidia-h200-tf32-forbid",
    "nvidia-h200-float16",
    "nvidia-h200-bfloat16",
    "nvidia-h200-portable",
    "cpu",
)
_SHARES = (
    "nvidia-h200",
    "nvidia-h200-float16",
    "nvidia-h200-bfloat16",
    "nvidia-h200-portable",
    "nvidia-h100",
    "cpu",
)


def rendered(text: str, results: Path) -> str:
    """`text` with each of these tables replaced by what the records below `results` give.

    Raises UsageError for markers that do not pair.
    """
    for name, make in _TABLES.items():
        marked = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        if len(marked.findall(text)) != text.count(f"<!-- {name} -->"):
            raise UsageError(f"a '<!-- {name} -->' without its '<!-- /{name} -->'")
        text = marked.sub(lambda match, make=make: match[1] + make(results) + match[2], text)
    return text


def floor_share(record: dict) -> float | None:
    """The floor's time over the solution's: 1 is as fast as the run's own ceilings allow.

    The floor is the longer of the bytes at the measured copy's rate and the products at the fastest
    measured matrix product's, on a GPU one in 16 bits; None where nothing was timed.
    """
    rates = record["roofline"] if record["ms"] and record["verdict"] == "accepted" else None
    if not rates:
        return None
    return doubts.bounding_share(rates)


def _folder(results: Path, name: str) -> dict[str, dict]:
    """The records of problems in a folder by problem, in order; empty where there is none."""
    found = [json.loads(path.read_text()) for path in (results / name).glob("*_*.json")]
    made = {record["problem"]: record for record in found if "problem" in record}
    return dict(sorted(made.items(), key=lambda item: _order(item[0])))


def _order(problem: str) -> list[int]:
    return [int(part) if part.isdigit() else 0 for part in problem.split("/")]


def _cell(record: dict | None, of_column: str | None) -> str:
    """Milliseconds, times as fast as the fastest PyTorch, share of the floor; the device where it
    is not the column's.
    """
    if record is None:
        return NOT_RECORDED
    if record["verdict"] != "accepted" or not record["ms"]:
        return record["verdict"] + " (not timed)" * (record["verdict"] == "accepted")
    solution, fastest = record["ms"]["solution"], record["fastest"]
    told = f"{solution['median']:.3g} ms{doubts.mark(doubts.is_wide(solution))}"
    told += f", **{fastest['speedup']:.2f}×**" if fastest else ""
    told += f", {floor_share(record):.0%}{doubts.mark(doubts.is_high(record['roofline']))}"
    full, batch = record["problem_batch"], record["batch"]
    notes = [f"batch {batch} of {full}"] * (batch != full)
    notes += [f"on {record['device_name']}"] * (record["device_name"] != of_column)
    return told + (f" ({', '.join(notes)})" if notes else "")


def headline(results: Path) -> str:
    """A row for each problem and pass, a column for each device."""
    found = {
        (device, told): _folder(results, device + suffix)
        for device in DEVICES
        for told, suffix in _PASSES.items()
    }
    problems = sorted({problem for part in found.values() for problem in part}, key=_order)
    firsts = [next(iter(found[device, "forward"].values()), None) for device in DEVICES]
    names = [_column(*pair) for pair in zip(firsts, DEVICES, strict=True)]
    lines = [f"| problem | pass | {' | '.join(names)} |", "|" + " --- |" * (2 + len(DEVICES))]
    for problem in problems:
        for told in _PASSES:
            cells = [
                _cell(found[device, told].get(problem), first and first["device_name"])
                for device, first in zip(DEVICES, firsts, strict=True)
            ]
            lines.append(f"| {problem} | {told} | {' | '.join(cells)} |")
    every = [record for part in found.values() for record in part.values()]
    legend = f" {doubts.LEGEND}." if any(map(doubts.found, every)) else ""
    about = sorted({_about(record) for record in every})
    return "\n".join(lines) + f"\n\n{'; '.join(about)}.{legend}\n"


def _column(record: dict | None, device: str) -> str:
    if record is None:
        return device
    name = record["device_name"]
    return f"CPU ({name}, {record['versions']['cpu_threads']} threads)" if device == "cpu" else name


def _about(record: dict) -> str:
    tried = (
        record["ms"],
        *(record.get(key, {}) for key in ("baselines_not_offered", "baseline_errors")),
    )
    older = bool(record["ms"]) and not any(CONV2D in part for part in tried)
    line = f"{record['device_name']}: PyTorch {record['versions']['torch']}, {record['date']}"
    return line + ", without conv2d as a baseline" * older


def shares(results: Path) -> str:
    """A row for each setting, a column for each problem: the floor's share of the time, and whether
    bytes or products make the floor.
    """
    return _by_setting(results, _SHARES, _share)


def _share(record: dict | None) -> str:
    share = floor_share(record) if record else None
    if share is None:
        return NOT_RECORDED
    floor_ms = share * record["ms"]["solution"]["median"]
    of_bytes = math.isclose(floor_ms, record["roofline"]["memory_ms"], rel_tol=1e-6)
    return f"{share:.0%} of {'bytes' if of_bytes else 'products'}"


def errors(results: Path) -> str:
    """A row for each setting: relative L2 errors on the problem's own inputs, beside PyTorch's."""
    return _by_setting(results, _ERRORS, _error)


def _error(record: dict | None) -> str:
    own = record["error"]["cases"].get("own") if record else None
    return f"{own['rel_l2']:.1e} ({own['pytorch_rel_l2']:.1e})" if own else NOT_RECORDED


def _by_setting(results: Path, settings: Iterable[str], cell: Callable) -> str:
    found = {name: _folder(results, name) for name in settings}
    problems = sorted({problem for part in found.values() for problem in part}, key=_order)
    lines = [f"| records | {' | '.join(problems)} |", "|" + " --- |" * (1 + len(problems))]
    for name, part in found.items():
        cells = [cell(part.get(problem)) for problem in problems]
        lines.append(f"| `results/{name}/` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def index(results: Path) -> str:
    """A row for each folder of records, by device and setting; it links to the folder's heading."""
    lines = ["| device | setting | accepted | speedup over the fastest PyTorch | table |"]
    lines.append("|" + " --- |" * 5)
    for folder in sorted(results.iterdir(), key=lambda path: (path.name == "cpu", path.name)):
        if not any(map(records.is_record_file, folder.glob("*.json"))):
            continue
        rows = [report_data.make_row(record) for record in records.read_records(folder)]
        ratios = [row.fastest["speedup"] for row in rows if row.fastest]
        told = f"{min(ratios):.2f}× to {max(ratios):.2f}×" if ratios else "not timed"
        accepted = f"{sum(row.accepted for row in rows)} of {len(rows)}"
        devices = ", ".join(dict.fromkeys(row.device for row in rows))
        about = f"| {devices} | {rows[0].setting} | {accepted} | {told} "
        lines.append(f"{about}| [{folder.name}](#{folder.name}) |")
    return "\n".join(lines) + "\n"


def host_time(results: Path) -> str:
    """Every device's record of `python -m harness.host_time`."""
    lines = ["| device | problem | " + " | ".join(_HOST_MODES.values()) + " |", "|" + " --- |" * 5]
    for path in sorted(results.glob("*/host_time.json")):
        record = json.loads(path.read_text())
        for problem in record["problems"]:
            cells = [
                f"{mode['solution']['median']:.0f} / {mode['eager']['median']:.0f} "
                f"({mode['ratio']:.2f}{_allowed(mode['bound'])})"
                for mode in (problem["modes"][name] for name in _HOST_MODES)
            ]
            row = [record["device_name"], problem["problem"], *cells]
            lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def gradients(results: Path) -> str:
    """Every device's record of `python -m harness.gradient_times`."""
    heads = "device", "problem", "gradient", "solution ms (IQR)", "eager ms", "channels_last ms"
    heads += "over the faster", "TFLOP/s", "of roofline (16-bit)"
    lines = [f"| {' | '.join(heads)} |", "|" + " --- |" * len(heads)]
    for path in sorted(results.glob("*/gradients.json")):
        record = json.loads(path.read_text())
        for problem in record["problems"]:
            for name, found in problem["gradients"].items():
                ours, rates = found["ms"]["solution"], found["roofline"]
                theirs = (found["ms"][side]["median"] for side in ("eager", "channels_last"))
                share = f"{100 * rates['share']:.0f}%"
                if rates["share_16_bit"] is not None:
                    share += f" ({100 * rates['share_16_bit']:.0f}%)"
                row = [record["device_name"], problem["problem"], f"of the {name}"]
                row += [
                    f"{ours['median']:.3g} ({ours['iqr']:.2g})",
                    *(f"{ms:.3g}" for ms in theirs),
                ]
                row += [f"**{found['fastest']['speedup']:.2f}×**", f"{rates['tflops']:.3g}", share]
                lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def _allowed(bound: float | None) -> str:
    return f"; allowed {bound:g}" if bound else ""


_TABLES: dict[str, Callable[[Path], str]] = {
    "headline": headline,
    "shares": shares,
    "errors": errors,
    "index": index,
    "host_time": host_time,
    "gradients": gradients,
    "shapes": shapes_report.tables,
    "family": family_report.tables,
    "profile": profile_report.tables,
}
