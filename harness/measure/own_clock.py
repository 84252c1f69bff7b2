"""Calls in a row by the harness's own clock: what a solution reports of itself must agree."""

import itertools
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from harness.judge.candidate import Candidate

_BURST_MS = 60.0
_LEAST_BURSTS, _BURST_PAUSE_S, _PATIENCE_S = 3, 0.1, 10.0
_SAMPLED = 64  # elements of an output


@dataclass(frozen=True)
class Burst:
    """Calls in a row by the harness's own clock, and what the last one's output held then.

    `sample` has the elements at the flat `indices`, None where not finite; `factor` is what the
    last call's base inputs were multiplied by.
    """

    milliseconds: float
    factor: float
    indices: list[int]
    sample: list


class OwnClock:
    """Bursts of a candidate's calls, of which the `best` counts.

    A burst never takes less than its work, so further ones help nobody who cheats. How many calls
    one has follows from the harness's clock, never from reported times. Of every burst some of the
    output's `elements`, chosen at random, come back before its clock stops; those of the best are
    for the caller to check.
    """

    def __init__(self, candidate: Candidate, elements: int):
        self._candidate, self._elements = candidate, elements
        self.best: Burst | None = None

    def tick(self, short: bool = False) -> Burst:
        """One more burst; a short one fits between two interruptions of a busy machine."""
        least = short or self.best is None
        count = 2 if least else max(2, min(100, round(_BURST_MS / self.best.milliseconds)))
        factors = random_factors(2)
        source = random.SystemRandom()
        indices = [source.randrange(self._elements) for _ in range(min(_SAMPLED, self._elements))]
        milliseconds, sample = self._candidate.burst(factors, count, indices)
        burst = Burst(milliseconds, factors[(count - 1) % 2], indices, sample)
        self.best = min(self.best or burst, burst, key=lambda entry: entry.milliseconds)
        return burst

    def settle(self, reported_ms: float, look: Callable[[float, str], None]) -> Burst:
        """The best of three bursts, and of more for ten seconds while a busy machine keeps the
        clock from agreeing with `reported_ms`.

        After one of the first three `look(factor, where)` is called: the burst's last output,
        copied before the clock was stopped, is then to be fetched and checked.
        """
        if self.best is None:
            self.tick()
        looked = random.SystemRandom().randrange(_LEAST_BURSTS)
        deadline = time.monotonic() + _PATIENCE_S
        for index in itertools.count():
            if index >= _LEAST_BURSTS:
                late = time.monotonic() > deadline
                if late or clocks_agree(reported_ms, self.best.milliseconds):
                    return self.best
                time.sleep(_BURST_PAUSE_S)
            one = self.tick(short=index >= _LEAST_BURSTS and index % 2 == 1)
            if index == looked:
                look(one.factor, "last of the calls in a row")


def clocks_agree(reported_ms: float, own_ms: float) -> bool:
    """Whether the worker's device times can be true, given what the harness's clock says.

    Calls in a row take no longer than twice one timed call and half a millisecond of launching;
    a machine that is busy elsewhere can stretch a burst, hence the factor and the best of many.
    """
    return own_ms <= 2.0 * reported_ms + 0.5


def random_factors(count: int) -> list[float]:
    """Random factors between a half and one, of few bits, so that scaling rounds at most once."""
    source = random.SystemRandom()
    return [source.randrange(512, 1024) / 1024 for _ in range(count)]
