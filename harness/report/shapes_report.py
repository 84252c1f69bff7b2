"""The record of the shapes benchmark as tables, on the terminal and on the results' page."""

import json
import math
import statistics
from pathlib import Path

from rich.console import Console
from rich.table import Table

from harness.measure.shapes_cases import Shape, why
from harness.report import doubts

_RECORD = "shapes*.json"


def record_name(
    dtype: str, tf32: str, device: str, backward: bool = False, dimensions: int = 2
) -> str:
    """File name: shapes.json for two dimensions and fp32 as PyTorch computes it by default, else
    with what differs.
    """
    parts = ["shapes"] + [f"{dimensions}d"] * (dimensions != 2) + [dtype] * (dtype != "float32")
    parts += ["tf32-forbid"] * (dtype == "float32" and device != "cpu" and tf32 == "forbid")
    parts += ["backward"] * backward
    return "-".join(parts) + ".json"


def layer_text(entry: dict) -> str:
    """The layer in words: channels, image, kernel, and what is not the default."""
    channels_in, channels_out, kernel, stride, padding, output_padding, dilation, groups, bias = (
        entry["arguments"]
    )
    size = " × ".join(map(str, entry["input_shape"][2:]))
    batch, full = entry["input_shape"][0], entry["full_batch"]
    parts = [f"{batch} × {channels_in} × {size} → {channels_out}"]
    parts += [f"(batch {batch} of {full})"] * (batch != full)
    parts.append(f"kernel {_axes(kernel)}")
    for name, value, default in (
        ("stride", stride, 1),
        ("padding", padding, 0),
        ("output_padding", output_padding, 0),
        ("dilation", dilation, 1),
    ):
        parts += [f"{name} {_axes(value)}"] * (set(value) != {default})
    parts += [f"groups {groups}"] * (groups != 1) + ["bias"] * bias
    return ", ".join(parts).replace(", (batch", " (batch")


def listed(shape: Shape) -> str:
    """A shape's name and its layer, as it is measured on a GPU."""
    whole = {
        "arguments": shape.arguments,
        "input_shape": shape.input_shape(shape.batch),
        "full_batch": shape.batch,
    }
    return f"{shape.name:<24} {layer_text(whole)}"


def _axes(values) -> str:
    return "×".join(map(str, values)) if len(set(values)) > 1 else f"{values[0]}"


def print_entries(console: Console, record: dict, name: str) -> None:
    """One row for each shape, and the reasons of those rejected or slower."""
    baselines = record["baselines"]
    heads = ["shape", "ms", "IQR", *baselines, "ratio", "between", "TFLOP/s", "rel. L2", "kernel"]
    table = Table(*heads)
    for entry in record["shapes"]:
        if entry["verdict"] != "accepted":
            table.add_row(entry["name"], "rejected", *["–"] * (len(heads) - 2))
            continue
        ms, fastest = entry["ms"], entry["fastest"]
        table.add_row(
            entry["name"],
            f"{ms['solution']['median']:.3g}",
            f"{ms['solution']['iqr']:.2g}{wide(ms['solution'])}",
            *(f"{ms[b]['median']:.3g}{wide(ms[b])}" if b in ms else "–" for b in baselines),
            f"{fastest['speedup']:.2f}x" if fastest else "–",
            f"{fastest['low']:.2f}-{fastest['high']:.2f}" if fastest else "–",
            f"{entry['tflops']:.3g}",
            f"{entry['error']['rel_l2']:.1e}",
            entry["kernel"] or "–",
        )
    console.print(table)
    for entry in record["shapes"]:
        for reason in entry["reasons"]:
            console.print(f"{entry['name']}: rejected: {reason}", markup=False)
        for baseline, reason in entry.get("baseline_errors", {}).items():
            console.print(f"{entry['name']}: {baseline} not available: {reason}", markup=False)
        if below_one(entry):
            told = why(record["device"], name.removesuffix(".json"), entry["name"])
            console.print(f"{entry['name']}: below 1x: {told or 'no reason given yet'}")
    console.print(summary(record))


def below_one(entry: dict) -> bool:
    """Whether the fastest PyTorch variant is faster than the solution."""
    return bool(entry.get("fastest")) and not entry["fastest"]["speedup"] >= 1


def summary(record: dict) -> str:
    """How many are right, the smallest ratio and the geometric mean."""
    entries = record["shapes"]
    accepted = sum(entry["verdict"] == "accepted" for entry in entries)
    told = f"{accepted} of {len(entries)} shapes accepted"
    ratios = [entry["fastest"]["speedup"] for entry in entries if entry.get("fastest")]
    if ratios and accepted == len(entries):
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        told += f"; ratio at least {min(ratios):.2f}, geometric mean {mean:.2f}"
    legend = f" {doubts.LEGEND}." if any(map(doubts.found, entries)) else ""
    return f"{told}.{legend}"


def wide(entry: dict) -> str:
    """The mark behind a time whose quartiles are too far apart."""
    return doubts.mark(doubts.is_wide(entry))


def markdown(record: dict, name: str) -> str:
    """The table of one record with a line about device, versions and date."""
    head = ["shape", "layer", "ms (IQR)", *(f"{b} ms" for b in record["baselines"])]
    head += ["over fastest", "TFLOP/s", "kernel", "why below 1×"]
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    for entry in record["shapes"]:
        lines.append(f"| {' | '.join(_row(record, entry, name))} |")
    versions = record["versions"]
    gpu = f"driver {versions['driver']}, CUDA {versions['cuda']}, " if versions["gpu"] else ""
    tf32 = f", TF32 {record['tf32']}" if gpu and record["dtype"] == "float32" else ""
    what = "forward and backward" if record["backward"] else "forward"
    lines += [
        "",
        f"{record['device_name']}, {gpu}PyTorch {versions['torch']}; {record['dtype']}{tf32}, "
        f"{what}; {record['date']}. {summary(record)}",
    ]
    return "\n".join(lines) + "\n"


def _row(record: dict, entry: dict, name: str) -> list[str]:
    row = [entry["name"], layer_text(entry)]
    if entry["verdict"] != "accepted":
        codes = sorted({reason.partition(":")[0] for reason in entry["reasons"]})
        return [*row, f"rejected: {', '.join(codes)}", *["–"] * (len(record["baselines"]) + 4)]
    ms, fastest = entry["ms"], entry["fastest"]
    solution = ms["solution"]
    row.append(f"{solution['median']:.3g} ({solution['iqr']:.2g}){wide(solution)}")
    names = record["baselines"]
    row += [f"{ms[b]['median']:.3g}{wide(ms[b])}" if b in ms else "–" for b in names]
    spread = f"**{fastest['speedup']:.2f}×** ({fastest['low']:.2f}–{fastest['high']:.2f})"
    row.append(spread if fastest else "–")
    told = why(record["device"], name.removesuffix(".json"), entry["name"])
    return [*row, f"{entry['tflops']:.3g}", entry["kernel"] or "–", told * below_one(entry)]


def tables(results: Path) -> str:
    """The tables of all records of shapes below `results`, a CPU's last."""
    paths = sorted(results.glob(f"*/{_RECORD}"), key=lambda p: (p.parent.name == "cpu", p))
    return "\n".join(markdown(json.loads(path.read_text()), path.name) for path in paths)
