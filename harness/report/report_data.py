"""What tables and pictures show: records checked and grouped, fast_p."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from harness.errors import UsageError
from harness.names import CONV2D
from harness.report import doubts, records, scores

BASELINES = {
    "eager": "eager",
    "compile": "compile",
    "channels_last": "channels_last",
    "compile_channels_last": "compile + channels_last",
    CONV2D: "convolution, channels_last",
}
FASTEST = "fastest"
COLD = "cold call ms (eager's)"
T = TypeVar("T")


@dataclass(frozen=True)
class Row:
    """One record. Times in milliseconds; a rejected one has no times, speedups or rates."""

    problem: str
    name: str
    solution: str
    setting: str
    slug: str
    device: str
    input: str
    accepted: bool
    reasons: tuple[str, ...]
    ms: float | None
    iqr: float | None
    wide: frozenset[str]  # names of what has times too far apart to be believed
    baseline_ms: dict[str, float]
    speedups: dict[str, float]
    fastest: dict | None
    rates: dict | None
    rel_l2: float | None
    pytorch_rel_l2: float | None
    date: str
    cold_ms: float | None = None
    eager_cold_ms: float | None = None
    record: dict = field(default_factory=dict)
    folder: Path | None = None  # where the record lay

    @property
    def is_problem(self) -> bool:
        """Whether it is one of KernelBench's, <level>/<number>: no part of one, nobody's own."""
        parts = self.problem.split("/")
        return len(parts) == 2 and all(part.isdecimal() for part in parts)

    @property
    def file(self) -> str:
        """The name of the solution's file, or of the problem where the record has none."""
        return self.solution.rpartition("/")[2] or self.name

    @property
    def order(self) -> tuple:
        """Sorts problems by level and number; others, by name, come after."""
        numbers = tuple(map(int, self.problem.split("/"))) if self.is_problem else ()
        return (not self.is_problem, numbers, self.problem, self.solution)

    @property
    def code(self) -> str:
        """Why it was rejected, in a word or a few."""
        codes = sorted({reason.partition(":")[0] for reason in self.reasons})
        return ", ".join(codes) or "no reason given"

    def speedup(self, baseline: str) -> float | None:
        """Over one baseline, or over the fastest one; None where it was not measured."""
        if baseline == FASTEST:
            return self.fastest["speedup"] if self.fastest else None
        return self.speedups.get(baseline)


@dataclass(frozen=True)
class Group:
    """The records of one device with the same settings, in the order of their problems."""

    slug: str
    title: str
    rows: tuple[Row, ...]

    @property
    def setting(self) -> str:
        """The settings that all rows share."""
        return self.rows[0].setting

    @property
    def scored(self) -> tuple[Row, ...]:
        """What scores and pictures count: the full problems, or all rows where there is none."""
        return tuple(row for row in self.rows if row.is_problem) or self.rows

    @property
    def others(self) -> tuple[Row, ...]:
        """Parts of problems and other references beside full problems."""
        every = len(self.scored) == len(self.rows)
        return () if every else tuple(row for row in self.rows if not row.is_problem)

    @property
    def timed(self) -> list[Row]:
        """Scored, accepted and timed."""
        return [row for row in self.scored if row.ms]

    @property
    def doubtful(self) -> bool:
        """Whether some number is marked."""
        return any(row.wide or doubts.is_high(row.rates) for row in self.rows)


def read_groups(paths: list[Path]) -> list[Group]:
    """The records in files and folders, grouped; of a folder without any those in its sub-folders.

    A record found twice counts once. Raises UsageError for a path without records and for a
    record that lacks what a report needs.
    """
    found: list[dict] = []
    grouped: dict[str, list[Row]] = {}
    for path in paths:
        for source in _sources(path):
            for record in records.read_records(source):
                if record in found:
                    continue
                found.append(record)
                row = make_row(record, source if source.is_dir() else source.parent)
                grouped.setdefault(row.slug, []).append(row)
    return [
        Group(slug, f"{rows[0].device}, {rows[0].setting}", tuple(sorted(rows, key=_row_order)))
        for slug, rows in sorted(grouped.items(), key=lambda item: (item[0] == "cpu", item[0]))
    ]


def _row_order(row: Row) -> tuple:
    return row.order


def _sources(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    if any(path.glob("*.json")):
        return [path]
    folders = sorted(part for part in path.iterdir() if part.is_dir())
    return [folder for folder in folders if any(folder.glob("*.json"))] or [path]


def make_row(record: dict, folder: Path | None = None) -> Row:
    """Checks one record. Raises UsageError that names the problem and the entry."""
    return replace(checked(record, _row), record=record, folder=folder)


def checked(record: dict, make: Callable[[dict], T]) -> T:
    """What `make` gives for a record. Raises UsageError where the record's form is wrong."""
    try:
        return make(record)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"no entry {error}" if isinstance(error, KeyError) else str(error)
        raise UsageError(f"record of problem {record['problem']!r}: {what}") from None


def _row(record: dict) -> Row:
    if record["verdict"] not in ("accepted", "rejected"):
        raise ValueError(f"verdict is {record['verdict']!r}; allowed are accepted and rejected")
    accepted = record["verdict"] == "accepted"
    medians, speedups, fastest, rates = {}, {}, None, None
    if accepted and record["ms"]:
        medians = {
            name: _positive(entry["median"], f"ms.{name}.median")
            for name, entry in record["ms"].items()
        }
        if "solution" not in medians:
            raise KeyError("ms.solution")
        speedups = {
            name: _positive(value, f"speedup.{name}") for name, value in record["speedup"].items()
        }
        fastest = _numbers(record.get("fastest"), "fastest", ("speedup", "low", "high"))
        rates = _rates(record.get("roofline"))
    own = (record["error"].get("cases") or {}).get("own") or {}
    full, batch = record.get("problem_batch"), record["batch"]
    cut = f" (batch {batch} of {full})" if full and full != batch else ""
    cold_ms, eager_cold_ms = cold_calls(record) if medians else (None, None)
    return Row(
        problem=str(record["problem"]),
        name=str(record.get("name", "")),
        solution=str(record.get("solution") or ""),
        setting=_setting(record),
        slug=records.folder_name(record),
        device=str(record["device_name"]),
        input=" × ".join(map(str, record["input_shape"] or ())) + cut,
        accepted=accepted,
        reasons=tuple(map(str, record.get("reasons") or ())),
        ms=medians.get("solution"),
        iqr=_or_none(record["ms"]["solution"]["iqr"], "ms.solution.iqr") if medians else None,
        wide=frozenset(name for name in medians if doubts.is_wide(record["ms"][name])),
        baseline_ms={name: medians[name] for name in BASELINES if name in medians},
        speedups=speedups,
        fastest=fastest,
        rates=rates,
        rel_l2=_or_none(own.get("rel_l2"), "rel_l2"),
        pytorch_rel_l2=_or_none(own.get("pytorch_rel_l2"), "pytorch_rel_l2"),
        date=str(record.get("date", "")),
        cold_ms=cold_ms,
        eager_cold_ms=eager_cold_ms,
    )


def cold_calls(record: dict) -> tuple[float | None, float | None]:
    """Median milliseconds of a cold call, the solution's and eager's; None where there is none."""
    entries = record.get("cold_call_ms") or {}
    return tuple(
        _positive(entries[name]["median"], f"cold_call_ms.{name}.median")
        if name in entries
        else None
        for name in ("solution", "eager")
    )


def _positive(value, name: str) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and 0 < value < math.inf):
        raise ValueError(f"{name} is {value!r}; it must be a positive number")
    return float(value)


def _or_none(value, name: str) -> float | None:
    """An error or a spread: not negative; None where it was not finite."""
    return value if value is None or value == 0 else _positive(value, name)


def _numbers(entry: dict | None, name: str, keys: tuple[str, ...]) -> dict | None:
    if entry is None:
        return None
    return {**entry, **{key: _positive(entry[key], f"{name}.{key}") for key in keys}}


def _rates(entry: dict | None) -> dict | None:
    rates = _numbers(entry, "roofline", ("gflop", "gbyte", "tflops", "ceiling_gbps", "share"))
    if rates and not rates["ceiling_tflops"]:
        raise ValueError("roofline.ceiling_tflops is empty")
    if rates and rates.get("share_16_bit") is not None:
        _positive(rates["share_16_bit"], "roofline.share_16_bit")
    for name, value in rates["ceiling_tflops"].items() if rates else ():
        _positive(value, f"roofline.ceiling_tflops.{name}")
    return rates


def passes(record: dict) -> str:
    """What a record's times are of."""
    what = "forward and backward" if record["backward"] else "forward"
    kernel = record.get("kernel", "auto")
    forced = f", {kernel} kernel forced" if kernel != "auto" else ""
    return what + " in eval mode" * bool(record.get("eval")) + forced


def _setting(record: dict) -> str:
    on_gpu = record["device"] != "cpu" and record["dtype"] == "float32"
    tf32 = f", TF32 {record['tf32']}" if on_gpu else ""
    return f"{record['dtype']}{tf32}, {passes(record)}"


def fast_p(rows, baseline: str, p: float) -> float | None:
    """`scores.fast_p` of rows, over one baseline or over the fastest one."""
    return scores.fast_p([(row.accepted, row.speedup(baseline)) for row in rows], p)


def compared(rows) -> list[str]:
    """The baselines that some row was timed beside, and FASTEST."""
    return [name for name in BASELINES if any(row.speedup(name) for row in rows)] + [FASTEST]
