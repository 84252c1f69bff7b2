"""With --backward: forward, backward and both, each with its own times, rates, floor and memory."""

import dataclasses
import io

import pytest
import torch
from rich.console import Console

from harness.catalog import Problem
from harness.errors import Rejected
from harness.measure import pass_times, passes, roofline, timing
from harness.report import doubts, records, tables
from harness.run.outcome import Options
from tests.fixture_judge import FIXTURES, evaluate

CPU = torch.device("cpu")
TIMED = {"check_only": False, "baselines": ("eager", "channels_last"), "backward": True}
TINY = (FIXTURES / "tiny.py").read_text().replace("class Model(", "class ModelNew(")


def solution_of(folder, *changes: tuple[str, str]):
    text = TINY
    for old, new in changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    path = folder / "solution.py"
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    solution = solution_of(tmp_path_factory.mktemp("honest"))
    outcome = evaluate("tiny", solution, batch=2, **TIMED)
    problem = Problem("tiny", "tiny", FIXTURES / "tiny.py", solution)
    return records.make_record(problem, Options(device=CPU, **TIMED), outcome, "it")


def test_each_pass_has_times_rates_and_memory_of_its_own(record):
    assert record["verdict"] == "accepted" and list(record["passes"]) == ["forward", "backward"]
    for part in record["passes"].values():
        assert set(part["ms"]) == set(part["calls_timed"]) == {"solution", *TIMED["baselines"]}
        assert set(part["speedup"]) == set(TIMED["baselines"])
        assert part["fastest"]["baseline"] in TIMED["baselines"] and part["baseline_errors"] == {}
        assert part["peak_bytes"] > 0
    forward, backward = record["passes"].values()
    both = record["roofline"]
    assert backward["roofline"]["gflop"] == pytest.approx(2 * forward["roofline"]["gflop"])
    for count in ("gflop", "gbyte"):
        parts = forward["roofline"][count] + backward["roofline"][count]
        assert both[count] == pytest.approx(parts)
    assert record["peak_bytes"] == max(forward["peak_bytes"], backward["peak_bytes"])
    assert set(record["error"]["cases"]["after_timing"]["gradients"]) == {
        "input 0",
        "conv.weight",
        "conv.bias",
    }


def test_the_table_shows_them_and_the_gradients_errors(record):
    console = Console(width=110, record=True, file=io.StringIO())
    tables.print_record(console, record)
    text = console.export_text()
    for words in (
        "both: ",
        "forward: ",
        "backward: ",
        "gradients on",
        "input 0 (3)",
        "peak memory",
    ):
        assert words in text
    older = {name: value for name, value in record.items() if name != "passes"}
    tables.print_record(console, older)
    assert "backward: " not in console.export_text()


def test_a_doubtful_pass_is_told(record):
    part = {**record["passes"]["backward"], "ms": {"solution": {"median": 1.0, "iqr": 0.9}}}
    told = doubts.found({"ms": {}, "passes": {"backward": part}})
    assert len(told) == 1 and told[0].startswith("backward alone: (!)")


def test_gradients_of_a_timed_backward_are_looked_at(tmp_path):
    """Of one that does its backward rightly only as long as it is checked."""
    lazy = """
class Lazy(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        Lazy.calls += 1
        return gradient if Lazy.calls < 60 else gradient * 0


class ModelNew("""
    solution = solution_of(
        tmp_path,
        ("class ModelNew(", lazy),
        ("return self.conv(x)", "return Lazy.apply(self.conv(x))"),
    )
    outcome = evaluate("tiny", solution, batch=2, **{**TIMED, "baselines": ("eager",)})
    assert [reason.partition(":")[0] for reason in outcome.reasons] == ["wrong_when_timed"]
    assert "wrong_gradient" in outcome.reasons[0] and "timed call" in outcome.reasons[0]


def test_what_is_on_the_clock_of_each_pass():
    """Forward and backward of a layer that notes when either runs."""
    noted = []

    class Noting(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            noted.append("forward")
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            noted.append("backward")
            return gradient * 2

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.unused = torch.nn.Parameter(torch.ones(1))

        def forward(self, x):
            return Noting.apply(x)

    model, base = Model(), [torch.ones(3)]
    on_clock = {
        passes.INFERENCE: ["forward"],
        passes.BOTH: ["forward", "backward"],
        passes.FORWARD: ["forward"],
        passes.BACKWARD: ["backward"],
    }
    for name, expected in on_clock.items():
        gradient = None if name == passes.INFERENCE else torch.full((3,), 5.0)
        parameters = [model.unused]
        call, prepare = passes.timed_pass(name, model, model, base, gradient, parameters)
        arguments = prepare(0.5)
        noted.clear()
        result = call(*arguments)
        assert noted == expected, name
        if name == passes.BACKWARD:
            assert result[0].tolist() == [10.0] * 3 and result[1] is None
        else:
            assert result.tolist() == [1.0] * 3


# The floor, and the harness's own clock ---------------------------------------------------------

WORK = roofline.Work(flops=10**12, bytes=10**6, layers=())
CEILINGS = roofline.Ceilings({"float32": 1.0}, 100.0, "told")  # 1 TFLOP/s: WORK takes a second


def measured(milliseconds: dict[str, float], monkeypatch, own_clock_ms: float, again_ms=None):
    monkeypatch.setattr(roofline, "ceilings", lambda *_, **__: CEILINGS)
    asked = []

    def measure(part, names, made):
        asked.append((part, names))
        return timing.Measurement(rounds={"solution": [[milliseconds[part]] * 2]})

    def again(reported: float) -> float:
        assert again_ms is not None and reported == sum(milliseconds.values())
        return again_ms

    found = pass_times.measure_parts(measure, ["eager"], WORK, "float32", CPU, own_clock_ms, again)
    assert asked == [("forward", ["eager"]), ("backward", ["eager"])]
    return found


def test_times_above_the_floor_are_taken(monkeypatch):
    found = measured({"forward": 1000.0, "backward": 4000.0}, monkeypatch, 5000.0)
    assert found["forward"].roofline["share"] == pytest.approx(1.0)
    assert found["backward"].roofline["share"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("forward", "backward", "part"), [(150.0, 4000.0, "forward"), (1000.0, 350.0, "backward")]
)
def test_each_pass_has_a_floor(forward, backward, part, monkeypatch):
    with pytest.raises(Rejected, match=f"impossible_time: {part} alone: "):
        measured({"forward": forward, "backward": backward}, monkeypatch, 1.0)


def test_parts_that_do_not_add_up_to_what_the_own_clock_says_are_rejected(monkeypatch):
    with pytest.raises(Rejected, match="clocks_disagree"):
        measured({"forward": 1000.0, "backward": 1000.0}, monkeypatch, 4001.0, again_ms=4001.0)
    # A busy machine: the clock has another try.
    measured({"forward": 1000.0, "backward": 1000.0}, monkeypatch, 4001.0, again_ms=3900.0)


def test_backward_alone_is_what_both_have_beyond_the_forward():
    both, backward = WORK.with_backward(), WORK.backward()
    assert both.flops == WORK.flops + backward.flops and both.bytes == WORK.bytes + backward.bytes
    assert dataclasses.replace(backward, flops=both.flops, bytes=both.bytes) == both
