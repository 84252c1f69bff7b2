"""Candidate and baselines timed in one run, in alternating slices."""

import contextlib
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from harness.errors import Rejected
from harness.judge.candidate import Candidate
from harness.judge.truth import loaded
from harness.measure import clock, passes
from harness.measure.convolution_baseline import with_convolutions
from harness.measure.layouts import has_channels_last, in_channels_last, module_in_channels_last
from harness.measure.own_clock import OwnClock, random_factors
from harness.names import CONV2D

_WARMUP_CALLS = 3
_MAX_CALLS = 20


@dataclass(frozen=True)
class Plan:
    """How long to measure: rounds, and the milliseconds one slice should take."""

    rounds: int
    slice_ms: float


def plan_for(device: torch.device) -> Plan:
    """More and shorter slices on a GPU, whose times vary less."""
    return Plan(8, 40.0) if device.type == "cuda" else Plan(5, 500.0)


@dataclass
class Measurement:
    """Times of one run: `rounds[name]` holds a list of milliseconds for each round."""

    rounds: dict[str, list[list[float]]] = field(default_factory=dict)
    baseline_errors: dict[str, str] = field(default_factory=dict)
    baseline_s: float = 0.0  # all that the baselines took, compiling included
    cold: dict[str, list[float]] = field(default_factory=dict)  # milliseconds of cold calls
    cold_errors: dict[str, str] = field(default_factory=dict)  # why there are none

    def summary(self) -> dict:
        """Median and inter-quartile range in milliseconds over all calls, by name."""
        return {
            name: clock.summarize([value for part in parts for value in part])
            for name, parts in self.rounds.items()
            if parts
        }

    def cold_summary(self) -> dict:
        """As `summary`, of cold calls."""
        return {name: clock.summarize(times) for name, times in self.cold.items() if times}

    def speedup(self) -> dict:
        """Over each baseline: the median of its `_ratios`."""
        return {name: statistics.median(self._ratios(name)) for name in self._baselines()}

    def fastest(self) -> dict | None:
        """The speedup that counts, over the fastest baseline; `low`, `high` are its quartiles."""
        speedup = self.speedup()
        if not speedup:
            return None
        name = min(speedup, key=speedup.get)
        low, _, high = statistics.quantiles(self._ratios(name), n=4, method="inclusive")
        return {"baseline": name, "speedup": speedup[name], "low": low, "high": high}

    def _baselines(self) -> list[str]:
        return [name for name, parts in self.rounds.items() if parts and name != "solution"]

    def _ratios(self, name: str) -> list[float]:
        """The ratio of medians within each round, where both were timed right after one another."""
        pairs = zip(self.rounds[name], self.rounds["solution"], strict=True)
        return [statistics.median(a) / statistics.median(b) for a, b in pairs]


class Baseline:
    """One PyTorch variant of the reference, timed in the harness's own process."""

    def __init__(self, name: str, model, case, device, dtype, grad_output):
        self.name = name
        laid_out = "channels_last" in name
        if laid_out and name != CONV2D and not any(map(has_channels_last, case.inputs)):
            raise ValueError("no input of 4 or 5 dimensions to lay out in channels_last")
        model = loaded(model, case.state, device, dtype)
        model = with_convolutions(model) if name == CONV2D else model
        model = module_in_channels_last(model) if laid_out else model
        in_layout = in_channels_last if laid_out else _contiguous
        base = [in_layout(value) for value in case.inputs]
        timed = model
        if name.startswith("compile"):
            timed = torch.compile(model, dynamic=False)
        gradient = grad_output if grad_output is None else in_layout(grad_output)
        self._passes = (timed, model, base, gradient, [*model.parameters()])
        self.take(passes.INFERENCE if grad_output is None else passes.BOTH)
        self.cold_call = timed if grad_output is None else self.call

    def take(self, part: str) -> None:
        """From now on `call` and `prepare` are those of this pass."""
        self.call, self.prepare = passes.timed_pass(part, *self._passes)


def _contiguous(value):
    return value.contiguous() if torch.is_tensor(value) else value


def measure_rounds(
    candidate: Candidate,
    names: list[str],
    model,
    case,
    device: torch.device,
    dtype: torch.dtype,
    grad_output: torch.Tensor | None,
    look: Callable[[float, str], None],
    note: Callable[[str], None],
    require_quiet: Callable[[], None] = lambda: None,
    part: str | None = None,
    made: dict[str, Baseline] | None = None,
    own: OwnClock | None = None,
) -> Measurement:
    """Time the candidate and the named baselines in alternating slices.

    Each call gets a fresh input: the base input times a random factor that nobody knew before.
    Of every slice of the candidate the output of a call chosen at random is kept; after two slices
    chosen at random and after the last, `look(factor, where)` is called: that output is then to be
    fetched and checked. While a baseline is timed, the candidate's processes are stopped, and
    before it `require_quiet()` raises Rejected if the device still works for them. `note(text)`
    reports progress. `part` is which of `passes` is timed, by default all that there is: a training
    step with `grad_output`, else inference. Baselines in `made` are used again, new ones put there.
    `own` has a burst after every slice of the candidate, so that it sees the same machine.
    Raises Rejected for what the candidate does wrong; a baseline that fails is noted in the result.
    """
    plan, result = plan_for(device), Measurement()
    backward, made = grad_output is not None, {} if made is None else made
    part = part or (passes.BOTH if backward else passes.INFERENCE)
    sent = [*case.inputs, grad_output] if backward else case.inputs
    inputs = candidate.send_inputs(sent)
    candidate.request("prepare_timing", "timing", inputs=inputs, part=part, training=model.training)
    began = time.monotonic()
    if any(name.startswith("compile") for name in names) and not made:
        torch.compiler.reset()  # the first time this imports the compiler, which takes seconds
    result.baseline_s += time.monotonic() - began
    stopwatch = clock.Stopwatch(device)
    runners: dict[str, Callable[[list[float]], list[float]]] = {"solution": candidate.time}
    counts: dict[str, int] = {}
    for name in ("solution", *names):
        note(f"warming up {name}")
        began = time.monotonic()
        try:
            if name != "solution":
                if name not in made:
                    made[name] = Baseline(name, model, case, device, dtype, grad_output)
                made[name].take(part)
                runners[name] = _runner(stopwatch, made[name])
            with _others_paused(name, candidate):
                warm = runners[name](random_factors(_WARMUP_CALLS))
        except Rejected:
            raise
        except Exception as error:
            if name == "solution":
                raise
            _give_up(name, error, runners, result)
            continue
        finally:
            if name != "solution":
                result.baseline_s += time.monotonic() - began
        counts[name] = max(2, min(_MAX_CALLS, round(plan.slice_ms / min(warm))))
        result.rounds[name] = []
    source = random.SystemRandom()
    looked = {*source.sample(range(plan.rounds), 2), plan.rounds - 1}
    order = list(runners)
    for index in range(plan.rounds):
        note(f"timing, round {index + 1} of {plan.rounds}")
        # The order turns round every time, so that neither side always follows the other.
        for name in order if index % 2 == 0 else order[::-1]:
            if name not in runners:
                continue
            factors = random_factors(counts[name])
            keep = source.randrange(len(factors))
            try:
                if name == "solution":
                    result.rounds[name].append(candidate.time(factors, keep))
                else:
                    began = time.monotonic()
                    with candidate.paused():
                        require_quiet()
                        result.rounds[name].append(runners[name](factors))
                    result.baseline_s += time.monotonic() - began
            except Rejected:
                raise
            except Exception as error:
                if name == "solution":
                    raise
                _give_up(name, error, runners, result)
            clock.synchronize(device)
            if name == "solution" and index in looked:
                look(factors[keep], f"timed call {keep + 1} of round {index + 1}")
            if name == "solution" and own is not None:
                own.tick()
    return result


def _others_paused(name: str, candidate: Candidate):
    return contextlib.nullcontext() if name == "solution" else candidate.paused()


def _give_up(name: str, error: Exception, runners: dict, result: Measurement) -> None:
    result.baseline_errors[name] = f"{type(error).__name__}: {error}"[:500]
    result.rounds.pop(name, None)
    runners.pop(name, None)


def _runner(stopwatch: clock.Stopwatch, baseline: Baseline) -> Callable:
    def run(factors: list[float]) -> list[float]:
        return stopwatch.slice(baseline.call, baseline.prepare, factors)[0]

    return run
