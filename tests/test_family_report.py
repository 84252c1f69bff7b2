"""The table of a family run, and the committed records that it shows."""

import copy
import json
from pathlib import Path

import pytest

from harness.catalog import ROOT
from harness.report import family_report, records

RESULTS = ROOT / "results"
RECORDS = sorted(RESULTS.glob("*/family/*.json"))


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", RECORDS, ids=relative)
def test_committed_records_are_accepted_and_in_their_folder(path):
    record = json.loads(path.read_text())
    assert record["verdict"] == "accepted" and record["reasons"] == []
    assert records.folder_name(record) == path.parent.parent.name
    assert record["problem"].replace("/", "_") == path.stem
    assert len(record["solution_sha256"]) == 64
    assert not record["reference"].startswith(("/", "."))


def written(results: Path, folder: str, **changes) -> None:
    record = copy.deepcopy(json.loads((RESULTS / "nvidia-h200" / "1_65.json").read_text()))
    record |= changes
    records.write_json(results / folder / "family" / f"{record['problem'][2:]}.json", record)


def fastest(speedup: float) -> dict:
    return {"baseline": "eager", "speedup": speedup, "low": speedup, "high": speedup}


def test_a_row_for_each_problem_and_the_mean(tmp_path):
    written(tmp_path, "gpu", problem="1/65", fastest=fastest(2.0))
    written(tmp_path, "gpu", problem="1/9", fastest=fastest(4.5))
    written(tmp_path, "gpu-backward", problem="1/65", fastest=fastest(1.25))
    written(tmp_path, "gpu-backward", problem="1/70", fastest=fastest(5.0))
    table = family_report.tables(tmp_path)
    rows = [line for line in table.splitlines() if line.startswith("| 1/")]
    assert [row.split(" | ")[0] for row in rows] == ["| 1/9", "| 1/65", "| 1/70"]
    assert "**2.00×** | " in rows[1] and rows[1].endswith("**1.25×** |")
    assert rows[0].endswith("| not recorded | – | – |") and "| not recorded | – | – |" in rows[2]
    assert "Forward: 2 of 2 accepted, at least 2.00×, geometric mean 3.00×." in table
    assert "backward: 2 of 2 accepted, at least 1.25×, geometric mean 2.50×." in table


def test_a_rejected_one_has_no_time_and_no_mean(tmp_path):
    written(tmp_path, "gpu", problem="1/65", fastest=fastest(2.0))
    written(tmp_path, "gpu", problem="1/70", verdict="rejected", ms={}, fastest=None)
    table = family_report.tables(tmp_path)
    assert "rejected | – | –" in table and "Forward: 1 of 2 accepted. " in table
