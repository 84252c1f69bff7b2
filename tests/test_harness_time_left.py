"""The time left is an estimate: near the truth, also for several at a time and after --resume."""

import io
import random

import pytest

from harness.run.progress import SuiteProgress
from harness.run.time_left import TimeLeft, duration


def simulated(durations: list[float], places: int, skipped: int = 0):
    """(time, estimate) at every start and end, and the time at which all were through."""
    now = [0.0]
    left = TimeLeft(len(durations) + skipped, places, lambda: now[0])
    for _ in range(skipped):
        left.skip()
    waiting, running, seen = list(enumerate(durations)), {}, []
    while waiting or running:
        while waiting and len(running) < places:
            index, seconds = waiting.pop(0)
            left.begin(str(index))
            running[index] = now[0] + seconds
        seen.append((now[0], left.seconds()))
        index = min(running, key=running.get)
        now[0] = running.pop(index)
        left.finish(str(index))
    assert left.seconds() == 0 and left.told() == "all done"
    return seen, now[0]


@pytest.mark.parametrize("skipped", [0, 40])
@pytest.mark.parametrize(("count", "places"), [(8, 1), (8, 2), (9, 2), (16, 8), (3, 8)])
def test_of_equal_ones_it_is_the_truth(count, places, skipped):
    seen, end = simulated([10.0] * count, places, skipped)
    told = [(at, found) for at, found in seen if found is not None]
    assert all(found is None for at, found in seen if at < 10)  # nothing tells yet
    for at, found in told:
        # All places end together, and the next ones' turn may not be full.
        assert end - at - 10 <= found <= end - at + 1e-9
    if count % places == 0:
        assert all(found == pytest.approx(end - at, abs=10 * (places - 1)) for at, found in told)
        assert told[-1][1] == pytest.approx(end - told[-1][0]) if told else count <= places


def test_of_unequal_ones_it_is_near():
    source = random.Random(3)
    durations = [source.uniform(20, 60) for _ in range(64)]
    seen, end = simulated(durations, 4)
    middle = [(at, found) for at, found in seen if found is not None and 0.2 < at / end < 0.8]
    assert middle
    assert all(abs(found - (end - at)) < 0.25 * (end - at) + 20 for at, found in middle)


def test_it_gets_less_while_they_run():
    now = [0.0]
    left = TimeLeft(3, 1, lambda: now[0])
    left.begin("a")
    now[0] = 100.0
    left.finish("a")
    left.begin("b")
    found = []
    for now[0] in (100.0, 150.0, 190.0, 400.0):
        found.append(left.seconds())
    assert found == [200.0, 150.0, 110.0, 100.0]


def test_where_builds_are_slower_the_rate_tells():
    now = [0.0]
    left = TimeLeft(10, 1, lambda: now[0])
    for index in range(4):
        now[0] = 60.0 * (index + 1)
        left.finish(str(index), seconds=5.0)
    assert left.seconds() == 360.0


def test_the_suites_lines(monkeypatch):
    stream = io.StringIO()
    progress = SuiteProgress(4, stream)
    progress.at(2)
    progress.kept("a")
    progress.done("b", "not evaluated: no reference")
    progress.doing("cuda:0", "c")
    progress.done("c", "accepted", 60.0)
    assert "c" in str(progress.__rich__()) and str(progress.__rich__()).startswith("3/4, 1 left")
    progress.doing("cuda:0", None)
    progress.done("d", "accepted", 60.0)
    progress.end()
    assert stream.getvalue().splitlines() == [
        "[1/4] a: kept from an earlier run",
        "[2/4] b: not evaluated: no reference; 2 left",
        "[3/4] c: accepted; 1 left, about 60 s",
        "[4/4] d: accepted; all done",
    ]


@pytest.mark.parametrize(
    ("seconds", "told"), [(40.2, "40 s"), (720, "12 min"), (12000, "3 h 20 min")]
)
def test_durations(seconds, told):
    assert duration(seconds) == told
