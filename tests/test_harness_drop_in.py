"""What keeps an accepted solution out of KernelBench: in the record, the tables, the last line."""

import io

import pytest
from rich.console import Console

from harness.catalog import ROOT
from harness.report import drop_in, records, tables
from harness.run import suite_run
from harness.run.suite_files import Item
from harness.run.suite_records import Result

RECORD = records.read_records(ROOT / "results" / "nvidia-h200" / "1_65.json")[0]
OTHER = {"does_not_drop_in": "other values from the same seed, for ['w']"}
ERROR = {"static_checker": {"errors": ["the word `pass`: `pass`"], "warnings": []}}
WARNING = {"static_checker": {"errors": [], "warnings": ["streams: `torch.cuda.Stream()`"]}}


def printed(show, *values) -> list[str]:
    stream = io.StringIO()
    show(Console(file=stream, width=200, highlight=False), *values)
    return stream.getvalue().splitlines()


@pytest.mark.parametrize(
    ("changes", "cell", "last"),
    [
        ({}, "accepted", None),
        (OTHER, "accepted, no drop-in", "does not drop into KernelBench: other values"),
        (ERROR, "accepted, no drop-in", "does not drop into KernelBench: errors of its static"),
        (WARNING, "accepted, warned", "KernelBench's static checker warns: streams: `torch"),
        (OTHER | WARNING, "accepted, no drop-in", "KernelBench's static checker warns"),
    ],
)
def test_it_is_told_in_tables_and_last_line(changes, cell, last):
    record = RECORD | changes
    lines = printed(tables.print_record, record)
    assert lines[-1].startswith(last) if last else "KernelBench: " not in lines[-1]
    barred = "no drop-in" in cell
    assert ("accepted, but does not drop into KernelBench (see below)" in lines) == barred
    assert any(f" {cell} " in line for line in printed(tables.print_summary, [record]))
    item = Item("x", ROOT / "x.py", None, "x.json")
    score = {"accepted": 1, "all": 1, "minimum": None, "geometric_mean": None, "fast_p": {}}
    rows = printed(suite_run.print_results, [Result(item, record)], score)
    assert any(f" {cell} " in line for line in rows)


def test_a_rejected_one_is_rejected_and_no_more():
    record = RECORD | ERROR | {"verdict": "rejected", "reasons": ["crash: x"], "ms": {}}
    assert drop_in.verdict(record) == "rejected"
    assert not any("KernelBench: " in line for line in printed(tables.print_record, record))
