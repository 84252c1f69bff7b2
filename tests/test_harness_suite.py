"""Many candidates: which reference each has, evaluation over several slots, resuming, stopping."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from harness import devices
from harness.devices import Slot
from harness.judge.processes import Processes
from harness.report import records
from harness.run import cli, suite, suite_run
from harness.run.progress import SuiteProgress
from harness.run.suite import Plan, Suite
from harness.run.suite_files import find_items

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "tests" / "fixtures"
TINY = FIXTURES / "tiny.py"

# Stands in for run_eval.py: does what the solution's first line says, and notes when and where.
EVALUATOR = """
import hashlib, json, os, signal, sys, time
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
source = open(given["--solution"], "rb").read()
word = source.decode().split()[1]
with open(os.environ["NOTES"], "a") as notes:
    notes.write(f"{word} {os.environ.get('GPU')} {given.get('--build-dir')}\\n")
time.sleep(0.1)
if word == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if word == "unfit":
    print("run_eval.py: error: no compiler", file=sys.stderr)
    sys.exit(3)
verdict = "rejected" if word == "rejected" else "accepted"
record = {
    "problem": "1/65", "device": "cpu", "verdict": verdict, "ms": {}, "fastest": None,
    "reasons": ["crash: so"] * (word == "rejected"),
    "solution_sha256": hashlib.sha256(source).hexdigest(),
}
if word != "silent":
    json.dump(record, open(given["--json"], "w"))
sys.exit(int(verdict == "rejected") if word != "lies" else 1)
"""
BUILDER = """
import os, sys
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
os.makedirs(given["--build-dir"], exist_ok=True)
word = open(given["--solution"]).read().split()[1]
if word != "eager":
    name = "lock" if word == "broken" else "built"
    open(os.path.join(given["--build-dir"], name), "w").close()
sys.exit(word != "accepted")
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Stand-ins for the evaluating and the building process; yields the file of their notes."""
    for name, text in (("evaluator.py", EVALUATOR), ("builder.py", BUILDER)):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(suite, "RUN_EVAL", [sys.executable, str(tmp_path / "evaluator.py")])
    monkeypatch.setattr(suite, "BUILD_AHEAD", [sys.executable, str(tmp_path / "builder.py")])
    notes = tmp_path / "notes"
    notes.touch()
    monkeypatch.setenv("NOTES", str(notes))
    return notes


def candidates(folder: Path, *words: str) -> Path:
    folder.mkdir(exist_ok=True)
    for sample, word in enumerate(words):
        name = f"level_1_problem_65_sample_{sample}_kernel.py"
        (folder / name).write_text(f"# {word}\n# sample {sample}\n")
    return folder


def evaluate(folder: Path, output: Path, slots=1, **changes) -> list[suite.Result]:
    items = find_items(folder)
    plan = Plan(output=output, arguments=[], settings={"seed": 1}, timeout=60, command="it")
    plan = Plan(**{**plan.__dict__, **changes})
    places = [Slot(f"cuda:{i}", "cuda:0", {"GPU": str(i)}) for i in range(slots)]
    return Suite(items, places, plan, SuiteProgress(len(items))).run()


def write(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("# a file\n")
    return folder


# Evaluating ------------------------------------------------------------------------------------


def test_a_failed_one_never_stops_the_rest(tmp_path, fake):
    words = ["accepted", "killed", "unfit", "silent", "lies", "rejected", "accepted"]
    folder = candidates(tmp_path / "run", *words)
    results = evaluate(folder, tmp_path / "out", slots=2)
    assert [result.status for result in results] == [0, 3, 3, 3, 3, 1, 0]
    assert "SIGKILL" in results[1].failure and "no compiler" in results[2].failure
    kept = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert kept == [f"level_1_problem_65_sample_{n}_kernel.json" for n in (0, 5, 6)]
    record = records.read_records(tmp_path / "out" / kept[1])[0]
    assert record["sample"] == 5 and record["verdict"] == "rejected" and record["command"] == "it"


@pytest.mark.parametrize(
    ("cores", "asked", "jobs"), [(1, None, 1), (16, None, 2), (64, None, 8), (16, 5, 5), (16, 0, 0)]
)
def test_builds_ahead_have_cores(monkeypatch, cores, asked, jobs):
    """And none disturbs the times of a CPU."""
    monkeypatch.setattr(suite_run.os, "cpu_count", lambda: cores)
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0a")
    plan = Plan(output=ROOT, arguments=[], settings={}, timeout=60, command="it")
    of_gpu = suite_run._with_builds_ahead(plan, asked, torch.device("cuda"))
    assert of_gpu.build_jobs == jobs and of_gpu.build_environment["CUDA_VISIBLE_DEVICES"] == ""
    assert suite_run._with_builds_ahead(plan, asked, torch.device("cpu")) is plan


def test_all_slots_work_each_with_its_own_device_and_build(tmp_path, fake):
    words = ["accepted", "broken", "eager", "gpu_only", *["accepted"] * 4]
    evaluate(candidates(tmp_path / "run", *words), tmp_path / "out", slots=2, build_jobs=2)
    notes = [line.split() for line in fake.read_text().splitlines()]
    assert len(notes) == 8 and {gpu for _, gpu, _ in notes} == {"0", "1"}
    folders = {word: build for word, _, build in notes}
    assert folders["broken"] == folders["eager"] == "None"  # nothing usable: built anew
    assert "build-" in folders["accepted"] and "build-" in folders["gpu_only"]
    assert not Path(folders["accepted"]).exists()


def test_resume_keeps_records_of_the_same_source_and_settings(tmp_path, fake):
    folder, out = candidates(tmp_path / "run", "accepted", "rejected", "killed"), tmp_path / "out"
    evaluate(folder, out)
    evaluate(folder, out, resume=True)  # only the one without a record runs again
    assert fake.read_text().split("\n")[3:-1] == ["killed 0 None"]
    second = folder / "level_1_problem_65_sample_1_kernel.py"
    second.write_text("# accepted\n# another source\n")
    results = evaluate(folder, out, resume=True)
    assert [result.kept for result in results] == [True, False, False]
    assert results[1].record["solution_sha256"] == hashlib.sha256(second.read_bytes()).hexdigest()
    results = evaluate(folder, out, resume=True, settings={"seed": 2})
    assert not any(result.kept for result in results)
    assert evaluate(folder, out)[0].kept is False


def test_a_record_cut_short_or_of_another_file_is_not_kept(tmp_path, fake):
    folder, out = candidates(tmp_path / "run", "accepted", "accepted"), tmp_path / "out"
    evaluate(folder, out)
    names = sorted(out.iterdir())
    names[1].write_text(names[0].read_text())
    names[0].write_text(names[0].read_text()[:100])
    assert [result.kept for result in evaluate(folder, out, resume=True)] == [False, False]


def test_a_failure_leaves_no_record_of_an_older_source(tmp_path, fake):
    folder, out = candidates(tmp_path / "run", "accepted"), tmp_path / "out"
    evaluate(folder, out)
    candidates(folder, "killed")
    evaluate(folder, out)
    assert list(out.iterdir()) == []


def test_an_evaluation_without_end_is_ended(tmp_path):
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    status, said = Processes(0.5).run(command, {}, tmp_path)
    assert status == 3 and "no end within 0.5 s" in said


def test_interrupting_leaves_finished_records_whole_and_nothing_running(tmp_path):
    folder = tmp_path / "run"
    write(folder, "a.py", "b.py")
    (folder / "a.py").write_text("raise ImportError('at once')\n")
    told = tmp_path / "pid"
    (folder / "b.py").write_text(
        f"import os, time\nopen({str(told)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    )
    words = ["--suite", str(folder), "--reference", str(TINY), "--device", "cpu", "--batch", "2"]
    words += ["--output", str(tmp_path / "out"), "--check-only"]
    with subprocess.Popen(
        [sys.executable, "run_eval.py", *words], cwd=ROOT, stderr=subprocess.PIPE, text=True
    ) as process:
        deadline = time.monotonic() + 100
        while not (told.exists() and told.read_text()) and time.monotonic() < deadline:
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        status = process.wait(timeout=60)
        said = process.stderr.read()
    assert status == 130 and "--resume goes on from there" in said
    assert "Traceback" not in said
    assert json.loads((tmp_path / "out" / "a.json").read_text())["verdict"] == "rejected"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a.json"]
    deadline = time.monotonic() + 10
    while alive(int(told.read_text())) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive(int(told.read_text()))


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False


@pytest.mark.sweep
def test_a_suite_on_the_command_line(tmp_path, capsys):
    folder = write(tmp_path / "run", "good.py", "bad.py")
    (folder / "good.py").write_bytes((FIXTURES / "honest" / "functional.py").read_bytes())
    words = ["--suite", str(folder), "--reference", str(TINY), "--device", "cpu", "--batch", "2"]
    words += ["--output", str(tmp_path / "out"), "--check-only", "--json", str(tmp_path / "all")]
    assert cli.main(words) == 1
    said = capsys.readouterr()
    assert "1 / 2" in said.out and "rejected: no_model_new" in said.out and "n/a" in said.out
    assert "[2/2]" in said.err and "left" in said.err
    whole = json.loads((tmp_path / "all").read_text())
    assert whole["scores"]["fast_p"]["0"] == 0.5 and len(whole["records"]) == 2
    assert cli.main([*words, "--resume"]) == 1
    assert capsys.readouterr().err.count("kept from an earlier run") == 2


@pytest.mark.parametrize(
    ("visible", "device", "expected"),
    [
        (None, None, {"cuda:0": "0", "cuda:1": "1"}),
        ("3,GPU-5", "cuda", {"cuda:0": "3", "cuda:1": "GPU-5"}),
        ("3,GPU-5", "cuda:1", {"cuda:1": "GPU-5"}),
    ],
)
def test_each_gpu_slot_shows_its_own_gpu_alone(visible, device, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    slots = devices.slots(device)
    assert {slot.name: slot.environment["CUDA_VISIBLE_DEVICES"] for slot in slots} == expected
    assert {slot.device for slot in slots} == {"cuda:0"}
