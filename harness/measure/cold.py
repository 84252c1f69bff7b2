"""Cold calls: what a suite's clock sees of a call on an idle GPU, the host's part included.

As KernelBench times a candidate: gradients enabled, nothing queued beforehand. The calls follow the
timing proper, candidate and baselines again in alternating slices.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch

from harness.errors import Refused, Rejected
from harness.judge.candidate import Candidate
from harness.measure import clock
from harness.measure.timing import Baseline, Measurement, random_factors
from harness.run.spent import Spent

_WARMUP_CALLS = 2


@dataclass(frozen=True)
class Plan:
    """How many calls: `rounds` slices of about `slice_ms`, of `least` to `most` calls each."""

    rounds: int
    slice_ms: float
    least: int
    most: int


def plan_for(device: torch.device) -> Plan:
    """Some tens of calls, on a CPU, where they are long, rather ten."""
    return Plan(4, 200.0, 5, 10) if device.type == "cuda" else Plan(3, 300.0, 3, 10)


def measure(
    result: Measurement,
    candidate: Candidate,
    names: list[str],
    model,
    case,
    device: torch.device,
    dtype: torch.dtype,
    grad_output: torch.Tensor | None,
    look: Callable[[float, str], None],
    note: Callable[[str], None],
    spent: Spent,
    require_quiet: Callable[[], None] = lambda: None,
) -> None:
    """Fill `result.cold` and `result.cold_errors`, after `timing.measure_rounds` and as it does:
    fresh inputs, the candidate stopped and the device quiet while a baseline has its turn.

    The first call of each slice does not count. One of the candidate's, chosen at random, is looked
    at. An exception of the candidate's with gradients enabled is noted, no more: it may not be made
    for that. Raises Rejected for all else it does wrong. What baselines take is `spent` on them.
    """
    plan, stopwatch = plan_for(device), clock.Stopwatch(device)
    clocks: dict[str, Callable] = {"solution": candidate.cold}
    counts: dict[str, int] = {}
    reset = [torch.compiler.reset] * any(name.startswith("compile") for name in names)

    def turn(name: str, count: int, keep: int = -1) -> tuple[list[float], list[float]]:
        """Factors and times of a slice; without times where there are none to be had any more."""
        factors = random_factors(count)
        try:
            if name == "solution":
                return factors, candidate.cold(factors, keep)
            with spent.on("baselines"), candidate.paused():
                require_quiet()
                while reset:
                    reset.pop()()
                if name not in clocks:
                    baseline = Baseline(name, model, case, device, dtype, grad_output)
                    clocks[name] = _clock(stopwatch, baseline)
                return factors, clocks[name](factors)
        except Rejected:
            raise
        except Exception as error:
            if name == "solution" and not isinstance(error, Refused):
                raise
            told = str(error) if name == "solution" else f"{type(error).__name__}: {error}"
            result.cold_errors[name] = told[:500]
            result.cold.pop(name, None)
            clocks.pop(name, None)
            clock.release_memory(device)
            return factors, []
        finally:
            clock.synchronize(device)

    for name in ("solution", *(name for name in names if name in result.rounds)):
        note(f"warming up cold calls of {name}")
        _, warm = turn(name, _WARMUP_CALLS)
        if warm:
            counts[name] = max(plan.least, min(plan.most, round(plan.slice_ms / min(warm))))
            result.cold[name] = []
    looked = random.SystemRandom().randrange(plan.rounds)
    for index in range(plan.rounds):
        note(f"cold calls, round {index + 1} of {plan.rounds}")
        for name in list(counts) if index % 2 == 0 else list(counts)[::-1]:
            if name not in result.cold:
                continue
            keep = random.SystemRandom().randrange(1, counts[name] + 1)
            factors, times = turn(name, counts[name] + 1, keep)
            if times:
                result.cold[name] += times[1:]
            if times and name == "solution" and index == looked:
                look(factors[keep], f"cold call {keep} of round {index + 1}")


def _clock(stopwatch: clock.Stopwatch, baseline: Baseline) -> Callable:
    def run(factors: list[float]) -> list[float]:
        return stopwatch.cold(baseline.cold_call, baseline.prepare, factors)[0]

    return run
