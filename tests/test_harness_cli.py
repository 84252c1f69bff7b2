"""run_eval.py's command line: exit statuses, pure JSON on standard output, records, messages."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from harness import catalog
from harness.catalog import Problem, find_problem, list_problems
from harness.names import KERNELS, SHORT_DTYPES
from harness.run import cli
from harness.run.arguments import make_parser
from harness.run.suite_files import find_items

ROOT = Path(__file__).resolve().parent.parent
FIXTURES = ROOT / "tests" / "fixtures"
TINY = str(FIXTURES / "tiny.py")
HONEST = str(FIXTURES / "honest" / "functional.py")
FIELDS = {
    "problem",
    "reference",
    "solution",
    "solution_sha256",
    "device",
    "dtype",
    "tf32",
    "batch",
    "backward",
    "verdict",
    "reasons",
    "ms",
    "cold_call_ms",
    "cold_call_errors",
    "statistics",
    "speedup",
    "error",
    "roofline",
    "build_s",
    "peak_bytes",
    "versions",
    "commit",
    "seeds",
    "command",
}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "one of --problem, --all"),
        (["--problem", "66"], "no such problem"),
        (["--problem", "conv_transpose"], "more than one"),
        (["--frobnicate"], "unrecognized arguments: --frobnicate"),
        (["--prob", "65"], "unrecognized arguments"),
        (["--problem", "65", "--all"], "exclude each other"),
        (["--problem", "65", "--solution", "no/such.py"], "no/such.py"),
        (["--reference", "no/such.py"], "no/such.py: no such file"),
        (["--reference", str(FIXTURES)], "fixtures: a folder goes with --suite"),
        (["--solution", HONEST], "say what to evaluate with --solution"),
        (["--problem", "65", "--device", "tpu"], "allowed are cpu, cuda"),
        (["--problem", "65", "--dtype", "int8"], "invalid choice"),
        (["--problem", "65", "--batch", "0"], "not a positive whole number"),
        (["--problem", "65", "--timeout", "-1"], "not a positive number of seconds"),
        (["--problem", "65", "--baselines", "eager,fast"], "allowed, each once"),
        (["--compare", "no_such.json", "b.json"], "no_such.json"),
        (["--compare", "one.json"], "two or more"),
        (["--compare", "a.json", "b.json", "--fail-below", "0"], "not a positive ratio"),
        (["--compare", "a.json", "b.json", "--sort", "speed"], "invalid choice"),
        (["--problem", "65", "--sort", "ms"], "go with --compare"),
        (["--problem", "65", "--fail-below", "1"], "go with --compare"),
        (["--show", "no_such.json"], "no_such.json"),
        (["--show", "one.json", "--all"], "exclude each other"),
        (["--reference", TINY, "--solution", HONEST, "--record"], "--record goes with"),
        (["--suite", "no/such"], "no/such: no such folder"),
        (["--suite", "tests", "--all"], "exclude each other"),
        (["--suite", "tests", "--solution", HONEST], "--solution does not go with"),
        (["--suite", "tests", "--build-dir", "x"], "--build-dir does not go with"),
        (["--suite", "tests", "--reference", "no/such"], "no such file or folder"),
        (["--problem", "65", "--resume"], "go with --suite"),
        (["--problem", "65", "--build-jobs", "0"], "goes with --suite and --family"),
        (["--problem", "65", "--ray"], "go with --suite"),
        (["--suite", "solutions", "--ray", "--build-jobs", "2"], "does not go with --ray"),
        (["--suite", "solutions", "--ray", "--device", "cuda:1"], "allowed are cpu and cuda"),
        (["--suite", "tests", "--build-jobs", "-1"], "not a whole number"),
        (["--problem", "65", "--output", "x"], "--output goes with"),
        (["--export-kernelbench", "results/cpu"], "needs --output"),
    ],
)
def test_wrong_usage_is_status_2_with_one_clear_message(arguments, message, capsys):
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err and "Traceback" not in captured.err
    assert captured.out == ""


@pytest.mark.parametrize("name", ["", "../elsewhere", "portabel"])
def test_a_mistyped_kernel_is_the_environments_fault(name, capsys, monkeypatch):
    monkeypatch.setenv("TCONV_KERNEL", name)
    assert cli.main(["--reference", TINY, "--solution", HONEST, "--device", "cpu"]) == 3
    assert f"TCONV_KERNEL is {name!r}: it must be one of auto, " in capsys.readouterr().err


def test_kernels_are_those_of_the_sources(monkeypatch):
    places = [path for path in (ROOT / "kernels_src").rglob("*") if path.suffix in (".h", ".cpp")]
    texts = "".join(path.read_text() for path in places)
    assert set(re.findall(r'\{"([a-z0-9]+)", k[A-Z]\w+\}', texts)) == set(KERNELS)
    for name in KERNELS:
        monkeypatch.setenv("TCONV_KERNEL", name)
        assert cli._forced_kernel() == name


def test_other_spellings():
    parse = make_parser().parse_args
    for short, name in SHORT_DTYPES.items():
        assert parse(["--dtype", short]).dtype == parse(["--dtype", name]).dtype == name
    for text in ("65", "1/65", "level1/65"):
        assert find_problem(text).id == "1/65"


def test_a_checkout_of_kernelbench_has_its_problems_one_folder_down(tmp_path):
    folder = tmp_path / "KernelBench" / "level3"
    folder.mkdir(parents=True)
    names = {"3/7": "7_a_model.py", "3/12": "12_gpt2-bs32.seq256.py"}
    for name in names.values():
        (folder / name).write_text("")
    assert [problem.id for problem in list_problems(tmp_path)] == list(names)
    assert [problem.id for problem in list_problems(tmp_path / "KernelBench")] == list(names)
    candidate = tmp_path / "run" / "level_3_problem_12_sample_0_kernel.py"
    candidate.parent.mkdir()
    candidate.write_text("")
    (item,) = find_items(candidate.parent, tmp_path)
    assert item.problem.id == "3/12" and item.problem.reference == folder / names["3/12"]


def test_help_and_list_wait_for_no_pytorch():
    code = (
        "import sys; from harness.run.entry import main; status = main(sys.argv[1:]); "
        "assert not {'torch', 'rich'} & set(sys.modules), 'slow imports'; sys.exit(status)"
    )
    for option, known in (("--list", "1/65   conv_transpose_3x7"), ("--help", "--keep FILE")):
        command = [sys.executable, "-c", code, option]
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert run.returncode == 0 and known in run.stdout, run.stderr


def test_the_handlers_of_signals_are_put_back(monkeypatch):
    """Whatever they were, however the command ends; meanwhile SIGTERM is the harness's."""
    known = [number for number in signal.valid_signals() if signal.getsignal(number) is not None]
    seen = []

    def listed():
        seen.append(signal.getsignal(signal.SIGTERM))
        return []

    def ours(*_):
        """Some handler of the caller's."""

    original = signal.signal(signal.SIGTERM, ours)
    before = {number: signal.getsignal(number) for number in known}
    try:
        for rows, status in ((listed, 0), (lambda: 1 / 0, 4)):
            monkeypatch.setattr(cli.listing, "rows", rows)
            assert cli.main(["--list"]) == status
            assert {number: signal.getsignal(number) for number in known} == before
    finally:
        signal.signal(signal.SIGTERM, original)
    assert seen and ours not in seen


def catalogue(monkeypatch, folder, **solutions):
    """Problems 9/1, 9/2, ... of the tiny reference, with these solutions."""
    problems = [
        Problem(f"9/{index}", name, Path(TINY), Path(solution or folder / f"{index}_{name}.py"))
        for index, (name, solution) in enumerate(solutions.items(), 1)
    ]
    monkeypatch.setattr(catalog, "list_problems", lambda root=None: problems)


def test_a_missing_solution_names_the_command_that_makes_it(monkeypatch, tmp_path, capsys):
    catalogue(monkeypatch, tmp_path, missing=None)
    assert cli.main(["--problem", "1", "--device", "cpu"]) == 2
    told = capsys.readouterr().err
    assert "this makes it: python -m generator tests/fixtures/tiny.py -o " in told
    assert told.rstrip().endswith("1_missing.py")


def test_one_problem_that_cannot_be_evaluated_does_not_stop_the_others(
    monkeypatch, tmp_path, capsys
):
    catalogue(monkeypatch, tmp_path, missing=None, there=HONEST)
    pair = tmp_path / "pair.py"  # of a kind that nothing here measures
    pair.write_text(Path(TINY).read_text().replace("return self.conv(x)", "return x, 3"))
    first = Problem("9/0", "pair", pair, Path(HONEST))
    found = [first, *catalog.list_problems()]
    monkeypatch.setattr(catalog, "list_problems", lambda root=None: found)
    arguments = ["--all", "--device", "cpu", "--batch", "2", "--check-only", "--json"]
    assert cli.main([*arguments, str(tmp_path / "all.json")]) == 2
    told = capsys.readouterr().err
    assert "run_eval.py: 9/1: error: no such solution file" in told and "9/2: 1 left" in told
    assert "run_eval.py: 9/0: error: the reference: forward returns a int; supported are" in told
    (record,) = json.loads((tmp_path / "all.json").read_text())
    assert record["problem"] == "9/2" and record["verdict"] == "accepted"


@pytest.mark.sweep
def test_a_generated_solution_can_be_kept(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(cli, "_evaluate", lambda *_: {"verdict": "accepted"})
    kept = tmp_path / "kept.py"
    assert cli.main(["--reference", TINY, "--device", "cpu", "--keep", str(kept)]) == 0
    assert "class ModelNew" in kept.read_text()
    for wrong in (["--problem", "65"], ["--reference", TINY, "--solution", HONEST]):
        assert cli.main([*wrong, "--keep", str(kept)]) == 2
        assert "--keep goes with --reference" in capsys.readouterr().err


def test_missing_device_is_status_3(capsys):
    arguments = ["--reference", TINY, "--solution", HONEST, "--device", "cuda:63"]
    assert cli.main(arguments) == 3
    assert "CUDA device" in capsys.readouterr().err


def test_missing_compiler_is_status_3(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    solution = str(FIXTURES / "honest" / "shared_library.py")
    assert cli.main(["--reference", TINY, "--solution", solution, "--device", "cpu"]) == 3
    assert "no C++ compiler" in capsys.readouterr().err


def test_reference_without_solution_that_cannot_be_generated_is_status_2(capsys, tmp_path):
    reference = tmp_path / "reference.py"
    reference.write_text(
        "import torch\nimport torch.nn as nn\n\n"
        "class Model(nn.Module):\n"
        "    def forward(self, x):\n        return torch.fft.fft(x).real\n\n"
        "def get_inputs():\n    return [torch.rand(2, 3)]\n\n"
        "def get_init_inputs():\n    return []\n"
    )
    assert cli.main(["--reference", str(reference)]) == 2
    assert "no solution could be generated" in capsys.readouterr().err


def test_help_has_examples_and_list_names_the_problems(capsys):
    assert cli.main(["--help"]) == 0
    assert "exit status: 0 accepted" in capsys.readouterr().out
    assert cli.main(["--list"]) == 0
    assert "2/19" in capsys.readouterr().out


def test_a_record_is_written_though_nobody_reads_on(tmp_path):
    """As behind `| head`: with the lines the run does not end."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "run_eval.py", "--list", "--json", str(tmp_path / "list.json")]
    try:
        done = subprocess.run(command, cwd=ROOT, stdout=writing, stderr=subprocess.PIPE, text=True)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(json.loads((tmp_path / "list.json").read_text())) >= 4


def test_json_on_stdout_is_alone_there_and_complete():
    arguments = ["--reference", TINY, "--solution", HONEST, "--device", "cpu", "--batch", "2"]
    done = subprocess.run(
        [sys.executable, "run_eval.py", *arguments, "--baselines", "eager,channels_last"]
        + ["--json", "-"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record.keys() >= FIELDS
    assert record["verdict"] == "accepted" and record["reasons"] == []
    assert set(record["ms"]) == {"solution", "eager", "channels_last"}
    assert set(record["statistics"]) == set(record["ms"]) == set(record["cold_call_ms"])
    assert record["cold_call_errors"] == {}
    assert set(record["speedup"]) == {"eager", "channels_last"}
    assert all(set(entry) == {"median", "iqr"} for entry in record["ms"].values())
    assert all(set(entry) == {"median", "iqr"} for entry in record["cold_call_ms"].values())
    assert set(record["error"]["cases"]) == {"own", "normal", "wide", "after_timing", "end"}
    assert record["dtype"] == "float32" and record["tf32"] == "forbid" and record["batch"] == 2
    assert record["other_size"]["verdict"] == "right"
    seconds = record["seconds"]
    assert seconds["overhead"] >= 0 and seconds["wall"] == pytest.approx(
        sum(seconds.values()) - seconds["wall"], abs=0.1
    )
    assert "accepted" in done.stderr and "building" in done.stderr


def test_rejection_is_status_1_with_a_record_and_no_speedup(tmp_path, capsys):
    out = tmp_path / "record.json"
    wrong = str(FIXTURES / "wrong" / "missing_bias.py")
    arguments = ["--reference", TINY, "--solution", wrong, "--device", "cpu", "--batch", "2"]
    before = torch.backends.cudnn.allow_tf32
    assert cli.main([*arguments, "--json", str(out)]) == 1
    assert torch.backends.cudnn.allow_tf32 == before
    record = json.loads(out.read_text())
    assert record["verdict"] == "rejected" and record["reasons"][0].startswith("inaccurate: ")
    assert record["speedup"] == {} and record["ms"] == {} and record["fastest"] is None
    assert record["cold_call_ms"] == {}
    assert record.keys() >= FIELDS
    assert "rejected" in capsys.readouterr().out
