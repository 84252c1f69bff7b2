"""Cold calls: how they are timed, what is done to keep them honest, where they are shown."""

import contextlib
import copy
import io
import json
import textwrap

import pytest
import torch
from rich.console import Console
from torch import nn

from harness.errors import Refused, Rejected
from harness.judge.cases import Case
from harness.measure import clock, cold
from harness.measure.timing import Measurement
from harness.report import page_writer, report_data, tables
from harness.report.html_results import results_table
from harness.run.spent import Spent
from tests.fixture_judge import evaluate
from tests.solution_tools import ROOT
from tests.sweeps import swept

CPU = torch.device("cpu")
HONEST = """
    import sys, torch, torch.nn as nn
    class ModelNew(nn.Module):
        def __init__(self, in_channels, out_channels, kernel_size):
            super().__init__()
            self.conv = nn.ConvTranspose2d(in_channels, out_channels, kernel_size)
        def forward(self, x):
            y = self.conv(x)
            return y
"""
IN_GRAD_MODE = "if torch.is_grad_enabled(): "


# The clock --------------------------------------------------------------------------------------


def test_a_cold_call_waits_for_the_device_then_flushes_and_has_gradients_enabled(monkeypatch):
    notes = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            notes.append("event")

        def elapsed_time(self, other):
            return 1.0

    class Flush:
        def fill_(self, value):
            notes.append("flush")

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(clock, "synchronize", lambda device: notes.append("wait"))
    monkeypatch.setattr(torch, "empty", lambda *sizes, **options: Flush())
    stopwatch = clock.Stopwatch(CPU)
    stopwatch.device = torch.device("cuda", 0)
    late = torch.zeros(3)

    def call(x):
        notes.append(("call", x, torch.is_grad_enabled()))
        return late

    def prepare(scale):
        notes.append("input")
        return [scale]

    with torch.no_grad():
        times, kept = stopwatch.cold(call, prepare, [0.5, 0.6], keep=1)
    late.fill_(1.0)
    assert times == [1.0] * 2 and kept.tolist() == [0.0] * 3  # a copy of what was there then
    one = ["input", "wait", "flush", "event", "call", "event", "wait"]
    assert [note if isinstance(note, str) else note[0] for note in notes] == one * 2
    assert [note[1:] for note in notes if note[0] == "call"] == [(0.5, True), (0.6, True)]


def test_on_the_cpu_gradients_are_enabled_too():
    seen = []
    stopwatch = clock.Stopwatch(CPU)
    times, kept = stopwatch.cold(
        lambda x: seen.append(torch.is_grad_enabled()) or x, lambda scale: [scale], [0.5, 0.6], 0
    )
    assert seen == [True, True] and kept == 0.5 and len(times) == 2 and min(times) > 0
    stopwatch.slice(clock.forward_call(lambda: seen.append(torch.is_grad_enabled())), _none, [1.0])
    assert seen[2:] == [False]  # as all that is timed otherwise


def _none(scale):
    return []


# Candidate and baselines ------------------------------------------------------------------------


class Scripted:
    """A candidate that answers with its own times, and knows whether it is stopped."""

    stopped = False

    def __init__(self, answer=lambda factors: [2.0] * len(factors)):
        self.answer, self.slices = answer, []

    def cold(self, factors, keep=-1):
        assert not self.stopped
        self.slices.append((factors, keep))
        return self.answer(factors)

    @contextlib.contextmanager
    def paused(self):
        self.stopped = True
        try:
            yield
        finally:
            self.stopped = False


class Layer(nn.Linear):
    """The reference: notes the inputs, whether gradients were wanted, and the candidate's state."""

    notes: list = []
    candidate = None

    def forward(self, x):
        self.notes.append((float(x.sum()), torch.is_grad_enabled(), self.candidate.stopped))
        return super().forward(x)


def measured(candidate, model=None, quiet=lambda: None, names=("eager",)):
    Layer.candidate, Layer.notes = candidate, []
    model = model or Layer(4, 4)
    case = Case("own", [torch.ones(2, 4)], model.state_dict(), 0)
    result = Measurement({"solution": [[1.0]], **{name: [[1.0]] for name in names}})
    looks, spent = [], Spent()
    cold.measure(
        result,
        candidate,
        list(names),
        model,
        case,
        CPU,
        torch.float32,
        None,
        lambda factor, where: looks.append((factor, where)),
        lambda text: None,
        spent,
        quiet,
    )
    return result, looks, spent


def test_baselines_have_their_turn_while_the_candidate_is_stopped_and_the_device_quiet():
    candidate, quiet = Scripted(), []
    result, looks, spent = measured(candidate, quiet=lambda: quiet.append(candidate.stopped))
    plan = cold.plan_for(CPU)
    assert quiet == [True] * (1 + plan.rounds)
    calls = len(result.cold["eager"])
    assert plan.rounds * plan.least <= calls <= plan.rounds * plan.most
    # Warm-up and one more in each slice, which do not count.
    assert len(Layer.notes) == calls + plan.rounds + cold._WARMUP_CALLS
    assert all(grad and stopped for _, grad, stopped in Layer.notes)
    assert len({total for total, _, _ in Layer.notes}) > 3  # fresh inputs
    assert result.cold["solution"] == [2.0] * (plan.rounds * plan.most) and not result.cold_errors
    assert spent.seconds["baselines"] > 0
    ((factor, where),) = looks
    assert "cold call" in where
    assert [factors[keep] for factors, keep in candidate.slices if factors[keep] == factor]
    assert all(1 <= keep < len(factors) for factors, keep in candidate.slices[1:])
    assert set(result.cold_summary()) == {"solution", "eager"}
    assert result.cold_summary()["solution"] == {"median": 2.0, "iqr": 0.0}


def test_a_refusal_and_a_failing_baseline_are_noted_and_the_other_goes_on():
    def refuse(factors):
        raise Refused("RuntimeError: only without gradients")

    result, looks, _ = measured(Scripted(refuse))
    assert result.cold_errors == {"solution": "RuntimeError: only without gradients"}
    assert set(result.cold_summary()) == {"eager"} and looks == []

    class Failing(nn.Linear):
        def forward(self, x):
            raise ValueError("no such layout")

    result, looks, _ = measured(Scripted(), Failing(4, 4))
    assert result.cold_errors == {"eager": "ValueError: no such layout"}
    assert set(result.cold_summary()) == {"solution"} and len(looks) == 1


def test_a_rejection_ends_the_measurement():
    def reject(factors):
        raise Rejected("crash", "died")

    def busy():
        raise Rejected("background_work", "busy")

    with pytest.raises(Rejected, match="crash"):
        measured(Scripted(reject))
    with pytest.raises(Rejected, match="background_work"):
        measured(Scripted(), quiet=busy)


def test_a_baseline_that_was_not_timed_has_no_cold_call():
    result, _, _ = measured(Scripted(), names=())
    assert set(result.cold) == {"solution"}


# A whole evaluation -----------------------------------------------------------------------------


def judged(folder, *changes, backward=False):
    """The outcome of the honest solution, changed."""
    text = textwrap.dedent(HONEST)
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = folder / "candidate.py"
    path.write_text(text)
    timed = {"check_only": False, "baselines": ("eager",), "backward": backward}
    return evaluate("tiny", path, batch=2, **timed)


@pytest.mark.parametrize("backward", swept([False, True], (1,)))
def test_an_evaluation_has_them_for_solution_and_baseline(tmp_path, backward):
    outcome = judged(tmp_path, backward=backward)
    assert outcome.reasons == []
    found = outcome.measurement.cold_summary()
    assert set(found) == {"solution", "eager"} and not outcome.measurement.cold_errors
    assert all(entry["median"] > 0 for entry in found.values())


def test_an_exception_with_gradients_enabled_rejects_nobody(tmp_path):
    told = "raise ValueError('without gradients only')"
    outcome = judged(tmp_path, ("return y", f"{IN_GRAD_MODE}{told}\n        return y"))
    assert outcome.reasons == []
    assert "without gradients only" in outcome.measurement.cold_errors["solution"]
    assert set(outcome.measurement.cold_summary()) == {"eager"}


@pytest.mark.parametrize(
    ("does", "reason"),
    [
        ("return y / 2", "wrong_when_timed"),
        ("sys.exit(3)", "exit"),
    ],
)
def test_what_is_wrong_with_gradients_enabled_only_rejects(tmp_path, does, reason):
    outcome = judged(tmp_path, ("return y", f"{IN_GRAD_MODE}{does}\n        return y"))
    assert [text.partition(":")[0] for text in outcome.reasons] == [reason]


def test_a_cold_time_below_what_the_device_can_do_rejects(tmp_path):
    patch = (
        "watch = sys.modules['harness.measure.clock'].Stopwatch\n"
        "real = watch.cold\n"
        "def cold(self, *arguments):\n"
        "    times, output = real(self, *arguments)\n"
        "    return [1e-9 for _ in times], output\n"
        "watch.cold = cold\n"
        "class ModelNew"
    )
    outcome = judged(tmp_path, ("class ModelNew", patch))
    assert len(outcome.reasons) == 1
    assert outcome.reasons[0].startswith("impossible_time: a cold call")


# Where they are shown ---------------------------------------------------------------------------

OLD = json.loads((ROOT / "tests" / "fixtures" / "records" / "gpu.json").read_text())
NEW = copy.deepcopy(OLD) | {
    "problem": "1/69",
    "cold_call_ms": {
        "solution": {"median": 0.8375, "iqr": 0.01},
        "eager": {"median": 2.914, "iqr": 0.02},
    },
    "cold_call_errors": {},
}


def test_the_readmes_table_has_a_column_where_a_record_has_them():
    heading = "cold call ms (eager's)"
    assert heading not in page_writer.render([OLD])
    rows = [line for line in page_writer.render([OLD, NEW]).splitlines() if line.startswith("| ")]
    assert len({row.count("|") for row in rows}) == 1
    column = [cell.strip() for cell in rows[0].split("|")].index(heading)
    cells = {row.split("|")[1].strip(): row.split("|")[column].strip() for row in rows[1:]}
    assert cells[OLD["problem"]] == "–" and cells["1/69"] == "0.838 (2.91)"
    rejected = NEW | {"problem": "2/11", "verdict": "rejected", "reasons": ["crash: x"], "ms": {}}
    rows = [
        line for line in page_writer.render([NEW, rejected]).splitlines() if line.startswith("| ")
    ]
    assert len({row.count("|") for row in rows}) == 1


def test_the_page_has_a_column_where_a_record_has_them(tmp_path):
    def page(*records):
        (tmp_path / "all.json").write_text(json.dumps(records))
        return results_table(report_data.read_groups([tmp_path / "all.json"]))

    assert "cold call" not in page(OLD)
    both = page(OLD, NEW)
    cell = '<td data-key="0.8375">0.8375<small>eager’s 2.91</small></td>'
    assert "cold call ms" in both and cell in both
    heads = both.count('scope="col"')
    assert both.count("<td") + both.count('<th scope="row"') == 2 * heads


def test_the_terminals_table_has_a_column_where_a_record_has_them():
    def shown(record):
        stream = io.StringIO()
        tables.print_record(Console(file=stream, width=160), record)
        return stream.getvalue()

    assert "cold call" not in shown(OLD)
    assert "cold call ms" in shown(NEW) and "0.8375" in shown(NEW) and "2.914" in shown(NEW)
    refused = NEW | {"cold_call_errors": {"solution": "ValueError: no"}}
    assert "no cold call of solution: ValueError: no" in shown(refused)
