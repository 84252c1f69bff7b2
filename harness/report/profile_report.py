"""A profile as a table, on the terminal and on docs/kernels.md."""

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from harness.measure import profile_counters as c

RECORD = "profile.json"
_HEAD = ("", "ms", "GHz", "tensor cores", "issue slots", "L1 and shared memory")
_HEAD += ("of it shared memory: wgmma and copies, loads, stores, conflicts", "L2", "DRAM")
_HEAD += ("GB read, written", "warps wait for")
_SECTOR_BYTES = 32
_REASONS_SHOWN = 4
# What ncu's documentation says of them, in fewer words.
_REASONS = {
    "barrier": "barrier",
    "branch_resolving": "branch",
    "dispatch_stall": "dispatch",
    "gmma": "wgmma",
    "lg_throttle": "queue of global memory",
    "long_scoreboard": "global memory, mbarriers",
    "math_pipe_throttle": "busy pipe",
    "mio_throttle": "queue of shared memory",
    "no_instruction": "instructions",
    "not_selected": "another warp's turn",
    "short_scoreboard": "shared memory",
    "sleeping": "sleeping",
    "wait": "fixed latency",
}


def rows(record: dict) -> list[list[str]]:
    """One row for the longest kernel of each profile."""
    made = []
    for profile in record["profiles"]:
        kernel = profile["kernels"][0]
        made.append([f"{profile['problem']}, {profile['dtype']}", *_row(kernel["counters"])])
    return made


def _row(counters: dict) -> list[str]:
    seconds = counters[c.TIME] * 1e-9
    return [
        f"{seconds * 1e3:.3g}",
        _of(counters, c.CLOCK, lambda value: f"{value * 1e-9:.2f}"),
        *(_of(counters, name, _percent) for name in (c.TENSOR, c.ISSUED, c.L1)),
        _shared(counters),
        _of(counters, c.L2, _percent)
        + _of(counters, c.L2_SECTORS, lambda n: f", {n * _SECTOR_BYTES / seconds * 1e-12:.2g} TB/s")
        + _of(counters, c.L2_HITS, lambda value: f", {value:.0f} % hits"),
        _of(counters, c.DRAM, _percent),
        ", ".join(
            _of(counters, name, lambda value: f"{value * 1e-9:.3g}")
            for name in (c.DRAM_READ, c.DRAM_WRITTEN)
        ),
        _waits(counters),
    ]


def _of(counters: dict, name: str, show) -> str:
    return show(counters[name]) if name in counters else "–"


def _percent(value: float) -> str:
    return f"{value:.0f} %"


def _shared(counters: dict) -> str:
    """Wavefronts as shares of all cycles of all SMs: one wavefront a cycle is the peak."""
    names = (c.SHARED, c.SHARED_LOADS, c.SHARED_STORES, c.CONFLICTS)
    if not {*names, c.L1_CYCLES} <= set(counters):
        return "–"
    every, loads, stores, conflicts = (
        100 * counters[name] / counters[c.L1_CYCLES] for name in names
    )
    shares = (every - loads - stores, loads, stores, conflicts)
    return ", ".join(f"{share:.0f}" for share in shares) + " %"


def _waits(counters: dict) -> str:
    """Shares of the time between two instructions of a warp, the largest first."""
    waits = {}
    for name, value in counters.items():
        match = c.STALL.fullmatch(name)
        if match:
            waits[match[1]] = value
    every = sum(waits.values())
    waits.pop("selected", None)
    largest = sorted(waits, key=lambda name: -waits[name])[:_REASONS_SHOWN]
    told = [f"{_REASONS.get(name, name)} {100 * waits[name] / every:.0f} %" for name in largest]
    return ", ".join(told) or "–"


def print_record(console: Console, record: dict) -> None:
    """The table on the terminal."""
    table = Table(*_HEAD)
    for row in rows(record):
        table.add_row(*row)
    console.print(table)


def markdown(record: dict) -> str:
    """The table with a line about what it was measured on."""
    lines = [f"| {' | '.join(_HEAD)} |", "|" + " --- |" * len(_HEAD)]
    lines += [f"| {' | '.join(row)} |" for row in rows(record)]
    versions = record["versions"]
    lines += [
        "",
        f"{record['device_name']}, driver {versions['driver']}, PyTorch {versions['torch']}, "
        f"Nsight Compute {versions['ncu']}; {record['date']}, `{record['command']}`.",
    ]
    return "\n".join(lines) + "\n"


def tables(results: Path) -> str:
    """The tables of all profiles below `results`."""
    paths = sorted(results.glob(f"*/{RECORD}"))
    return "\n".join(markdown(json.loads(path.read_text())) for path in paths)
