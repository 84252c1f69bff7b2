"""The host time of a call: what is timed and what is not, its table and its record."""

import hashlib
import json
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from harness import host_time
from harness.catalog import Problem, find_problem, list_problems
from harness.errors import UsageError
from harness.judge.reference import Reference
from tests.fixture_judge import FIXTURES

CPU = torch.device("cpu")
HONEST = FIXTURES / "honest" / "functional.py"
TINY = Problem("1/0", "tiny", FIXTURES / "tiny.py", HONEST)
SLEEP_S = 0.02


class Noting(nn.Module):
    """As the reference, but sleeps, and notes how it was called."""

    notes: list = []

    def __init__(self, in_channels, out_channels, kernel_size):
        super().__init__()
        self.conv = nn.ConvTranspose2d(in_channels, out_channels, kernel_size)

    def forward(self, x):
        cleared = all(parameter.grad is None for parameter in self.parameters())
        told = torch.is_grad_enabled(), x.requires_grad, cleared and x.grad is None, x.shape
        self.notes.append(told)
        time.sleep(SLEEP_S)
        return self.conv(x)


def test_modes_differ_in_gradients_and_sides_are_told_apart():
    Noting.notes = []
    entry = host_time.measure(TINY, {"ModelNew": Noting}, CPU, calls=4)
    assert list(entry["modes"]) == ["no_grad", "grad", "backward"]
    for found in entry["modes"].values():
        ours, eager = found["solution"], found["eager"]
        assert ours["low"] <= ours["median"] <= ours["high"]
        assert ours["low"] >= SLEEP_S * 1e6 > eager["low"] > 0  # microseconds
        assert found["ratio"] == ours["median"] / eager["median"]
    assert [found["bound"] for found in entry["modes"].values()] == [1.5, None, None]
    # 4 calls to warm up and 4 timed; backward one more, for the shape of the output's gradient.
    shape = (1, 8, 1, 1)
    expected = [(False, False, True, shape)] * 8 + [(True, False, True, shape)] * 8
    assert Noting.notes == expected + [(True, True, True, shape)] * 9
    assert entry["solution_sha256"] == hashlib.sha256(HONEST.read_bytes()).hexdigest()
    assert entry["arguments"] == [8, 16, (3, 5)] and entry["input_shape"] == [1, 8, 1, 1]


def test_backward_is_part_of_the_call():
    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            time.sleep(SLEEP_S)
            return gradient

    class ModelNew(Noting):
        def forward(self, x):
            return Slow.apply(self.conv(x))

    modes = host_time.measure(TINY, {"ModelNew": ModelNew}, CPU, calls=3)["modes"]
    assert modes["backward"]["solution"]["low"] >= SLEEP_S * 1e6 > modes["grad"]["solution"]["low"]


def test_weights_are_the_references():
    class Kept(Noting):
        made: list = []

        def __init__(self, *arguments):
            super().__init__(*arguments)
            self.made.append(self)

    host_time.measure(TINY, {"ModelNew": Kept}, CPU, calls=2)
    own = Reference(TINY.reference).model(host_time._SEED)
    torch.testing.assert_close(Kept.made[0].state_dict(), own.state_dict(), rtol=0, atol=0)


@pytest.mark.parametrize("problem", list_problems(), ids=lambda problem: problem.id)
def test_the_smallest_image_and_on_a_cpu_few_channels(problem):
    reference = Reference(problem.reference)
    host_time._cut_channels(reference)
    model = reference.model(0)
    x = host_time.tiny_input(reference, model, CPU)
    assert x.shape[:2] == (1, 8) and max(x.shape[2:]) <= 2 and model(x).numel() > 0
    assert max(p.shape[0] for p in model.parameters()) == 8
    if max(x.shape[2:]) > 1:
        with pytest.raises((RuntimeError, ValueError)):
            model(x[..., :1, :1])
    assert problem.id[0] in host_time.BOUNDS


def test_a_reference_that_takes_no_small_image_is_an_error(monkeypatch):
    monkeypatch.setattr(host_time, "_LARGEST_IMAGE", 3)
    reference = Reference(TINY.reference)
    model = nn.Conv2d(8, 8, 5)
    with pytest.raises(UsageError, match="takes no image of up to 3 x 3"):
        host_time.tiny_input(reference, model, CPU)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--problems", "66"], "no such problem"),
        (["--problems", "65", "--record"], "--record is for all problems"),
        (["--calls", "1"], "--calls 1: allowed are whole numbers from 2 on"),
        (["--threads", "0"], "--threads 0: allowed are whole numbers from 1 on"),
        (["--device", "tpu"], "allowed are cpu, cuda"),
    ],
)
def test_wrong_usage_is_status_2(arguments, message, capsys):
    assert host_time.main(arguments) == 2
    assert message in capsys.readouterr().err


def test_record_and_table(tmp_path, capsys, monkeypatch):
    """Of a solution that needs no build, in the place of every problem's."""
    problem = find_problem("65")
    solution = tmp_path / "solution.py"
    solution.write_text(problem.reference.read_text().replace("Model(", "ModelNew("))
    stand_in = Problem(problem.id, problem.name, problem.reference, solution)
    monkeypatch.setattr(host_time, "list_problems", lambda: [stand_in])
    monkeypatch.setattr(host_time, "find_problem", lambda name: stand_in)
    arguments = ["--device", "cpu", "--calls", "3", "--record", str(tmp_path / "results")]
    assert host_time.main([*arguments, "--json", str(tmp_path / "own.json")]) == 0
    written = Path(tmp_path / "results" / "cpu" / "host_time.json").read_text()
    assert written == (tmp_path / "own.json").read_text()
    record = json.loads(written)
    assert record["calls"] == 3 and record["unit"] == "us" and record["device"] == "cpu"
    assert record["versions"]["torch"] == torch.__version__ and record["date"]
    assert record["command"].startswith("python -m harness.host_time --device cpu --calls 3")
    (entry,) = record["problems"]
    assert entry["solution_sha256"] == hashlib.sha256(solution.read_bytes()).hexdigest()
    out = capsys.readouterr().out
    for words in ("1/65", "no_grad", "gradients enabled", "forward + backward", "median of 3"):
        assert words in out
    assert out.count("kept") + out.count("missed") == 1  # on a CPU one mode has a bound


def test_a_committed_solution_is_executed_and_measured(tmp_path, shelf):
    """Built where the other tests build."""
    problem = find_problem("69")
    solution = shelf["69"].solution
    modes = host_time.measure(problem, solution, CPU, calls=3)["modes"]
    assert all(found["solution"]["median"] > 0 for found in modes.values())
    names = host_time.executed(HONEST, tmp_path / "builds", CPU)
    assert "ModelNew" in names and (tmp_path / "builds").is_dir()
    with pytest.raises(UsageError, match="no/such.py: no such file"):
        host_time.executed(Path("no/such.py"), tmp_path, CPU)
