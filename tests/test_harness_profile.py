"""The profile: ncu's table is read, shown, and recorded of the committed solutions."""

import json
import subprocess
from types import SimpleNamespace

import pytest
import torch

from harness import devices, profile
from harness.measure import profile_counters
from harness.report import page_writer, profile_report
from tests import record_tools
from tests.record_tools import require_standing
from tests.solution_tools import ROOT

RECORDS = sorted((ROOT / "results").glob(f"*/{profile_report.RECORD}"))
STALL = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
HEAD = ["ID", "Kernel Name", profile_counters.TIME, profile_counters.TENSOR, profile_counters.L1]
HEAD += [profile_counters.DRAM_READ, STALL.format("wait"), STALL.format("gmma"), "unasked"]
ROWS = [
    ["0", "void tconv::small<float>(Args)", "2500", "1", "2", "100", "1", "0", "7"],
    ["1", "void tconv::large<float>(Args)", "2,000,000", "66.6", "n/a", "5e8", "0.5", "1.5", "7"],
]


def table(head=HEAD, rows=ROWS):
    """What ncu writes: what it says of itself, names, units, and a row for each kernel."""
    lines = ["==PROF== Connected to process 1", *(",".join(map(quoted, row)) for row in [head])]
    lines += [",".join('""' for _ in head), *(",".join(map(quoted, row)) for row in rows)]
    return "\n".join(lines) + "\n"


def quoted(text):
    return f'"{text}"'


def test_kernels_are_read_the_longest_first():
    large, small = profile_counters.read_counters(table())
    assert (large["kernel"], large["us"]) == ("tconv::large<float>", 2000)
    assert (small["kernel"], small["us"]) == ("tconv::small<float>", 2.5)
    assert large["counters"][profile_counters.TENSOR] == 66.6
    assert profile_counters.L1 not in large["counters"] and "unasked" not in large["counters"]


@pytest.mark.parametrize("text", ["", "==ERROR== ERR_NVGPUCTRPERM\n", table(rows=[])])
def test_nothing_is_read_of_what_is_no_table(text):
    assert profile_counters.read_counters(text) == []


def a_record(text):
    kernels = profile_counters.read_counters(text)
    return {
        "device_name": "GPU",
        "versions": {"driver": "1", "torch": "2", "ncu": "3"},
        "date": "2026-01-01",
        "command": "python -m harness.profile",
        "profiles": [{"problem": "1/65", "dtype": "float32", "kernels": kernels}],
    }


def test_shares_and_what_is_missing():
    (row,) = profile_report.rows(a_record(table()))
    assert row[0] == "1/65, float32" and row[1] == "2" and row[3] == "67 %"
    assert row[5] == "–" and row[9].startswith("0.5, ")
    assert row[10] == "wgmma 75 %, fixed latency 25 %"


def test_shared_memory_in_wavefronts_of_all_cycles():
    names = ["L1_CYCLES", "SHARED", "SHARED_LOADS", "SHARED_STORES", "CONFLICTS"]
    head = HEAD + [getattr(profile_counters, name) for name in names]
    rows = [[*ROWS[1], "1000", "600", "100", "200", "50"]]
    (row,) = profile_report.rows(a_record(table(head, rows)))
    assert row[6] == "30, 10, 20, 5 %"


def test_page_is_rendered_and_checked(tmp_path):
    results, page = tmp_path / "results", tmp_path / "page.md"
    (results / "gpu").mkdir(parents=True)
    (results / "gpu" / "profile.json").write_text(json.dumps(a_record(table())))
    page.write_text("a\n<!-- profile -->\n<!-- /profile -->\nb\n")
    where = ["--readme", str(page), "--results", str(results)]
    assert page_writer.main(["--check", *where]) == 1
    assert page_writer.main(where) == 0
    assert page_writer.main(["--check", *where]) == 0
    rows = [line for line in page.read_text().splitlines() if line.startswith("|")]
    assert len(rows) == 3 and len({line.count("|") for line in rows}) == 1
    page.write_text("no end\n<!-- profile -->\n")
    assert page_writer.main(where) == 2 and page.read_text() == "no end\n<!-- profile -->\n"


@pytest.mark.parametrize(
    "arguments, status, told",
    [
        (["--dtypes", "float32,float8"], 2, "float8"),
        (["--problems", "no-such"], 2, "no-such"),
        (["--record", "--problems", "65"], 2, "--json FILE"),
        (["--device", "cpu"], 2, "cuda:<index>"),
        (["--device", "cuda:99"], 3, "cuda:99"),
    ],
)
def test_exit_status(arguments, status, told, capsys):
    assert profile.main(arguments) == status
    assert told in capsys.readouterr().err


@pytest.fixture
def device(monkeypatch):
    """A GPU that answers what a record asks, and nothing to build."""
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(devices, "resolve_device", lambda text: gpu)
    monkeypatch.setattr(devices, "device_name", lambda device: "A GPU")
    monkeypatch.setattr(devices, "environment", lambda device: {"driver": "1", "torch": "2"})
    monkeypatch.setattr(profile, "load_solution", lambda *arguments: (None, 0.0))


def ncu(monkeypatch, text, status):
    """A stand-in for ncu that writes `text` to its log."""

    def run(command, **options):
        if "--version" in command:
            return SimpleNamespace(stdout="Version 9\n")
        log = command[command.index("--log-file") + 1]
        with open(log, "w") as file:
            file.write(text)
        return subprocess.CompletedProcess(command, status, "", "what the program said")

    monkeypatch.setattr(profile, "_find_ncu", lambda: "ncu")
    monkeypatch.setattr(profile.subprocess, "run", run)


def test_record(device, monkeypatch, tmp_path):
    ncu(monkeypatch, table(), 0)
    assert profile.main(["--record", str(tmp_path), "--dtypes", "float16"]) == 0
    record = json.loads((tmp_path / "a-gpu" / "profile.json").read_text())
    problems = [entry["problem"] for entry in record["profiles"]]
    assert problems == ["1/65", "1/69", "2/11", "2/19"] and record["versions"]["ncu"] == "9"
    assert {entry["dtype"] for entry in record["profiles"]} == {"float16"}
    assert record["profiles"][0]["kernels"][0]["us"] == 2000


@pytest.mark.parametrize("text, status", [(table(), 1), ("==ERROR== no counters\n", 0)])
def test_a_failing_profiler_leaves_no_record(device, monkeypatch, tmp_path, capsys, text, status):
    ncu(monkeypatch, text, status)
    target = tmp_path / "profile.json"
    assert profile.main(["--json", str(target), "--problems", "65"]) == 3
    told = capsys.readouterr().err
    assert "ncu failed on 1/65" in told and "what the program said" in told
    assert not target.exists()


def test_without_the_profiler(device, monkeypatch, capsys):
    monkeypatch.setattr(profile.shutil, "which", lambda *arguments, **options: None)
    assert profile.main(["--problems", "65"]) == 3
    assert "Nsight Compute" in capsys.readouterr().err


# Committed records ------------------------------------------------------------------------------


@record_tools.how
def test_record_is_of_the_committed_solutions(how):
    assert RECORDS
    for path in RECORDS:
        record = json.loads(path.read_text())
        assert record["device"] == path.parent.name
        require_standing(record, how)


def test_page_has_the_record():
    page = ROOT / "docs" / "kernels.md"
    assert "<!-- profile -->\n" in page.read_text()
    assert page_writer.main(["--check", "--readme", str(page)]) == 0
