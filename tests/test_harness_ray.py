"""--ray: a suite over a cluster's nodes, one task a candidate; what fails is one clear line."""

import contextlib
import io
import json
import os
import pickle
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
import torch

from harness.run import cli, ray_cluster, ray_node, ray_suite
from harness.run.progress import SuiteProgress
from harness.run.suite_files import find_items
from harness.run.suite_records import Plan
from tests.fixture_judge import running

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "tests" / "fixtures"
TINY = FIXTURES / "tiny.py"

# Stands in for run_eval.py on a node: does what the solution's first line says.
EVALUATOR = """
import hashlib, json, os, signal, sys, time
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
source = open(given["--solution"], "rb").read()
word = source.decode().split()[1]
if word == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if word == "kills_its_task":
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)
if word == "unfit":
    print("run_eval.py: error: no compiler", file=sys.stderr)
    sys.exit(3)
time.sleep(1.0)
record = {
    "problem": given["--reference"], "device": given["--device"], "ms": {}, "fastest": None,
    "verdict": "rejected" if word == "rejected" else "accepted",
    "reasons": ["crash: so"] * (word == "rejected"), "gpu": os.environ["CUDA_VISIBLE_DEVICES"],
    "threads": os.environ.get("OMP_NUM_THREADS"), "folder": os.getcwd(), "time": time.time(),
    "solution_sha256": hashlib.sha256(source).hexdigest(),
}
if word != "silent":
    json.dump(record, open(given["--json"], "w"))
sys.exit(int(word == "rejected"))
"""
DEVICES = """
import torch
resolve_device = torch.device
device_name = device_slug = lambda device: "test-gpu"
"""


def run(*words, **changes) -> subprocess.Popen:
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return subprocess.Popen(
        [sys.executable, str(ROOT / "run_eval.py"), *map(str, words)],
        env={**environment, **changes},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def candidates(folder: Path, *words: str) -> Path:
    folder.mkdir()
    for sample, word in enumerate(words):
        name = f"level_1_problem_65_sample_{sample}_kernel.py"
        (folder / name).write_text(f"# {word}\n# sample {sample}\n")
    return folder


def test_without_ray_one_line_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)
    folder = candidates(tmp_path / "run", "accepted")
    assert cli.main(["--suite", str(folder), "--ray"]) == 3
    said = capsys.readouterr().err
    assert said.startswith("run_eval.py: error: --ray needs Ray") and said.count("\n") == 1


def test_a_cluster_that_is_not_there_is_one_line(tmp_path, monkeypatch, capsys):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    folder = candidates(tmp_path / "run", "accepted")
    assert cli.main(["--suite", str(folder), "--ray"]) == 3
    said = capsys.readouterr().err
    assert "no connection to RAY_ADDRESS=127.0.0.1:9" in said and said.count("\n") == 1


def test_the_bundle_is_the_harness_and_nothing_else():
    names = zipfile.ZipFile(io.BytesIO(ray_cluster.bundled())).namelist()
    assert "run_eval.py" in names and "harness/judge/worker.py" in names
    rules = {"generator/__init__.py", "generator/static_rules.py"}  # of KernelBench's checker
    others = [name for name in names if not name.startswith("harness/")]
    assert set(others) == {"run_eval.py"} | rules


def test_a_node_with_nothing_else_describes_itself_and_evaluates(tmp_path):
    bundle = ray_cluster.bundled()
    told = ray_node.describe(bundle, "cpu")
    assert told["slug"] == "cpu" and told["torch"] == torch.__version__
    job = {"files": {}, "arguments": ["--help"], "environment": {"PYTHONPATH": None}, "limit": 60}
    assert ray_node.evaluate(bundle, job)["status"] == 0
    files = {"reference/tiny.py": TINY.read_bytes()}
    files["solution/a.py"] = (FIXTURES / "wrong" / "crash_at_import.py").read_bytes()
    words = ["--reference", "reference/tiny.py", "--solution", "solution/a.py", "--device", "cpu"]
    done = ray_node.evaluate(bundle, job | {"files": files, "arguments": words})
    assert done["status"] == 1, done
    assert json.loads(done["record"])["verdict"] == "rejected"


def test_a_task_names_no_file_of_the_drivers_machine(tmp_path):
    sent = []

    class Recorder:
        device, places = "cuda:0", 1

        def submit(self, *job):
            sent.append(job)

    plan = Plan(output=tmp_path / "out", arguments=[], settings={}, timeout=1.0, command="it")
    items = find_items(candidates(tmp_path / "run", "accepted"))
    ray_suite.RaySuite(items, Recorder(), plan, SuiteProgress(1))._submit(items[0])
    assert str(tmp_path).encode() not in pickle.dumps(sent)
    files, words, _ = sent[0]
    assert words[1].startswith("reference/level1/65_") and set(words[1:4:2]) == set(files)
    assert files[words[3]] == items[0].solution.read_bytes()


@pytest.fixture
def two_nodes(monkeypatch):
    """A cluster of two nodes on this machine, each with one GPU that is only on paper."""
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "0")
    node = {"num_cpus": 1, "num_gpus": 1, "object_store_memory": 100 << 20}
    cluster = Cluster(initialize_head=True, head_node_args=node)
    try:
        cluster.add_node(**node)
        monkeypatch.setenv("RAY_ADDRESS", cluster.address)
        yield cluster
    finally:
        cluster.shutdown()


@pytest.mark.sweep
def test_tasks_share_the_gpus_of_all_nodes_and_survive_each_other(tmp_path, two_nodes, monkeypatch):
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("run_eval.py", EVALUATOR)
        archive.writestr("harness/__init__.py", "")
        archive.writestr("harness/devices.py", DEVICES)
    monkeypatch.setattr(ray_cluster, "bundled", stream.getvalue)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    words = ["accepted", "killed", "unfit", "kills_its_task", "silent", "rejected", "accepted"]
    items = find_items(candidates(tmp_path / "run", *words))
    before = signal.getsignal(signal.SIGTERM)
    with ray_cluster.connected(None) as cluster:
        assert signal.getsignal(signal.SIGTERM) == before
        assert (str(cluster.device), cluster.slug, cluster.places) == ("cuda:0", "test-gpu", 2)
        plan = Plan(output=tmp_path / "out", arguments=[], settings={}, timeout=60, command="it")
        results = ray_suite.RaySuite(items, cluster, plan, SuiteProgress(len(items))).run()
    assert [result.status for result in results] == [0, 3, 3, 3, 3, 1, 0]
    assert "SIGKILL" in results[1].failure and "no compiler" in results[2].failure
    assert "left no record" in results[4].failure
    made = [result.record for result in results if result.record]
    assert {record["gpu"] for record in made} <= {"0", "1"} and len(made) == 3
    assert {record["threads"] for record in made} == {"3"}  # the driver's, not Ray's own
    assert {record["solution"] for record in made} == {items[n].solution.name for n in (0, 5, 6)}
    assert not any(Path(record["folder"]).exists() for record in made)
    deadline = time.monotonic() + 10  # what a killed task had started ends, too
    while (left := running(b"sample_3_kernel.py")) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        f"level_1_problem_65_sample_{n}_kernel.json" for n in (0, 5, 6)
    ]


@pytest.mark.sweep
def test_interrupted_and_resumed_on_a_cluster_of_its_own(tmp_path):
    pytest.importorskip("ray")
    folder, out, told = tmp_path / "run", tmp_path / "out", tmp_path / "pid"
    folder.mkdir()
    (folder / "a.py").write_bytes((FIXTURES / "wrong" / "crash_segfault.py").read_bytes())
    (folder / "b.py").write_text(
        f"import os, time\nopen({str(told)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)\n"
    )
    words = ["--suite", folder, "--reference", TINY, "--device", "cpu", "--batch", "2", "--ray"]
    words += ["--output", out, "--check-only", "--json", tmp_path / "all.json"]
    with run(*words) as process:
        deadline = time.monotonic() + 600
        while not (told.exists() and told.read_text()) and time.monotonic() < deadline:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=300)[1]
    assert process.returncode == 130 and "--resume goes on from there" in said
    assert "Traceback" not in said and "[1/2] a: rejected: crash" in said
    assert [path.name for path in out.iterdir()] == ["a.json"]
    assert not alive(int(told.read_text()))
    (folder / "b.py").write_bytes((FIXTURES / "honest" / "functional.py").read_bytes())
    with run(*words, "--resume") as process:
        table, said = process.communicate(timeout=600)
    assert process.returncode == 1, said
    assert "a: kept from an earlier run" in said and "[2/2] b: accepted; all done" in said
    assert "1 / 2" in table
    whole = json.loads((tmp_path / "all.json").read_text())
    assert [record["verdict"] for record in whole["records"]] == ["rejected", "accepted"]
    assert json.loads((out / "b.json").read_text())["reference"] == "tests/fixtures/tiny.py"


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    return False
