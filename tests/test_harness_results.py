"""Committed records belong to the committed solutions, by file or by machine code, and the
pages show what they say.
"""

import json
import re
from pathlib import Path

import pytest

from harness import machine_code
from harness.catalog import list_problems
from harness.report import page_tables, page_writer, records
from tests import record_tools
from tests.record_tools import require_standing

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
# Of problems; those of parts of problems, of shapes and of suites have other names.
RECORDS = [path for path in sorted(RESULTS.glob("*/*.json")) if re.fullmatch(r"\d+_\d+", path.stem)]
FOLDERS = sorted({path.parent for path in RECORDS})
PARTS = sorted(RESULTS.glob("*-parts/*.json"))


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@record_tools.how
@pytest.mark.parametrize("path", RECORDS, ids=relative)
def test_record_is_of_the_committed_solution(path, how):
    record = json.loads(path.read_text())
    assert (ROOT / record["solution"]).is_file()
    assert records.folder_name(record) == path.parent.name
    assert record["problem"].replace("/", "_") == path.stem
    assert record["verdict"] == "accepted" and record["reasons"] == []
    assert (ROOT / record["reference"]).is_file()
    require_standing(record, how)


@record_tools.how
@pytest.mark.parametrize("path", PARTS, ids=relative)
def test_record_of_a_part_is_of_what_is_generated(path, how):
    record = json.loads(path.read_text())
    assert record["problem"] == path.stem and record["verdict"] == "accepted"
    require_standing(record, how)


def test_every_record_of_a_gpu_has_a_hash_of_its_machine_code():
    """Else the next edit of a page costs it: python -m harness.machine_code --stamp."""
    found = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("*/*.json"))]
    parts = [part for record in found for part in machine_code.parts_of(record)]
    assert parts
    assert [part for part in parts if part["device"] != "cpu" and "machine_code" not in part] == []


def test_every_problem_has_its_record():
    """In the folders of devices; those of unusual settings may have less."""
    expected = {problem.record_name for problem in list_problems()}
    devices = {json.loads(path.read_text())["device"] for path in RECORDS}
    assert {"cpu", "nvidia-h200"} <= devices
    for device in devices:
        assert expected <= {path.name for path in (RESULTS / device).glob("*.json")}


@pytest.mark.parametrize("folder", FOLDERS, ids=relative)
def test_pages_show_the_records(folder):
    text = "".join(page.read_text() for page in page_writer.PAGES)
    assert f"<!-- table:{folder.name} -->" in text
    assert page_writer.main(["--check"]) == 0


@pytest.mark.parametrize(
    ("changes", "folder"),
    [
        ({}, "nvidia-h200"),
        ({"dtype": "float16", "tf32": "forbid"}, "nvidia-h200-float16"),
        ({"tf32": "forbid", "backward": True}, "nvidia-h200-tf32-forbid-backward"),
        ({"eval": True, "kernel": "portable"}, "nvidia-h200-eval-portable"),
        ({"device": "cpu", "tf32": "forbid", "kernel": "auto"}, "cpu"),
    ],
)
def test_unusual_settings_have_a_folder_of_their_own(changes, folder):
    told = record(**{"device": "nvidia-h200", "tf32": "allow", **changes})
    assert records.folder_name(told) == folder


# The rendering itself --------------------------------------------------------------------------


def record(**changes) -> dict:
    made = {
        "problem": "1/65",
        "device": "cpu",
        "device_name": "Some CPU",
        "dtype": "float32",
        "tf32": "forbid",
        "batch": 1,
        "problem_batch": 8,
        "backward": False,
        "input_shape": [1, 64, 512, 512],
        "verdict": "accepted",
        "reasons": [],
        "ms": {
            "solution": {"median": 100.0, "iqr": 1.0},
            "eager": {"median": 300.0, "iqr": 2.0},
            "compile": {"median": 250.0, "iqr": 2.0},
        },
        "fastest": {"baseline": "compile", "speedup": 2.5, "low": 2.4, "high": 2.6},
        "roofline": {"tflops": 0.45, "share": 0.5},
        "error": {"cases": {"own": {"rel_l2": 2e-7, "pytorch_rel_l2": 3e-7}}},
        "versions": {"gpu": None, "cpu_threads": 2, "torch": "2.13.0"},
        "date": "2026-11-21",
    }
    return {**made, **changes}


def test_a_table_that_need_not_be_recorded_says_so(tmp_path):
    page = tmp_path / "README.md"
    page.write_text("<!-- table:gpu-backward if recorded -->\nold\n<!-- /table -->\n")
    arguments = ["--readme", str(page), "--results", str(tmp_path)]
    assert page_writer.main(arguments) == 0
    assert "\nNot recorded.\n<!-- /table -->" in page.read_text()
    (tmp_path / "gpu-backward").mkdir()
    (tmp_path / "gpu-backward" / "1_65.json").write_text(json.dumps(record(backward=True)))
    assert page_writer.main(arguments) == 0
    assert "**2.50×** (2.40–2.60)" in page.read_text()


def test_headline_has_every_device_and_pass(tmp_path):
    """A cell without a record says so; the floor is the fastest ceiling's."""
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "1_65.json").write_text(json.dumps(record()))
    (tmp_path / "cpu" / "host_time.json").write_text("{}")
    rows = [line.strip("| ").split(" | ") for line in page_tables.headline(tmp_path).splitlines()]
    assert rows[0][2:] == ["nvidia-h200", "nvidia-h100", "CPU (Some CPU, 2 threads)"]
    assert rows[2] == [
        "1/65",
        "forward",
        *["not recorded"] * 2,
        "100 ms, **2.50×**, 50% (batch 1 of 8)",
    ]
    assert rows[3] == ["1/65", "training", *["not recorded"] * 3]
    other = record(problem="1/69", device_name="Another CPU")
    (tmp_path / "cpu" / "1_69.json").write_text(json.dumps(other))
    assert "(batch 1 of 8, on Another CPU)" in page_tables.headline(tmp_path)
    (tmp_path / "cpu-backward").mkdir()
    slow = record(backward=True, verdict="rejected", reasons=["crash: x"], ms={}, fastest=None)
    (tmp_path / "cpu-backward" / "1_65.json").write_text(json.dumps(slow))
    assert "| rejected |" in page_tables.headline(tmp_path)


def test_floor_share_is_of_the_ceiling_that_bounds():
    rates = {"tflops": 0.45, "share": 1.4, "share_16_bit": 0.7}
    assert page_tables.floor_share(record(roofline=rates)) == 0.7
    assert page_tables.floor_share(record()) == 0.5
    assert page_tables.floor_share(record(verdict="rejected")) is None
    assert page_tables.floor_share(record(ms={})) is None


def test_table_is_written_between_its_markers_and_checked(tmp_path):
    results, readme = tmp_path / "results", tmp_path / "README.md"
    (results / "cpu").mkdir(parents=True)
    rejected = record(
        problem="1/69", verdict="rejected", reasons=["crash: x"], ms={}, fastest=None, roofline=None
    )
    (results / "cpu" / "1_65.json").write_text(json.dumps(record()))
    (results / "cpu" / "1_69.json").write_text(json.dumps(rejected))
    readme.write_text("before\n<!-- table:cpu -->\nold\n<!-- /table -->\nafter\n")
    arguments = ["--readme", str(readme), "--results", str(results)]
    assert page_writer.main([*arguments, "--check"]) == 1
    assert page_writer.main(arguments) == 0
    assert page_writer.main([*arguments, "--check"]) == 0
    text = readme.read_text()
    assert text.startswith("before\n<!-- table:cpu -->\n| problem |") and text.endswith("after\n")
    assert (
        "(batch 1 of 8)" in text and "**2.50×** (2.40–2.60)" in text and "rejected: crash" in text
    )
    assert "1 of 2 accepted; smallest speedup 2.50×" in text and "Some CPU, 2 threads" in text
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len({line.count("|") for line in rows}) == 1


@pytest.mark.parametrize(
    "text", ["<!-- table:cpu -->\nno end\n", "<!-- table:none -->\n<!-- /table -->"]
)
def test_table_without_end_or_records_is_an_error(tmp_path, text):
    readme = tmp_path / "README.md"
    readme.write_text(text)
    assert page_writer.main(["--readme", str(readme), "--results", str(tmp_path)]) == 2
    assert readme.read_text() == text
