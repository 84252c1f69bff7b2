"""How long a number of evaluations will still take."""

import statistics
import threading
import time
from collections.abc import Callable


class TimeLeft:
    """An estimate from the evaluations that are through: their mean time, how long those under way
    have run, and how many run at a time (`places`). Safe to use from several threads.
    """

    def __init__(self, total: int, places: int = 1, now: Callable[[], float] = time.monotonic):
        self.places, self._now = places, now
        self.rest = total
        self._durations: list[float] = []
        self._begun: dict[str, float] = {}
        self._first = now()
        self._lock = threading.RLock()

    def skip(self) -> None:
        """One less, which took no time."""
        with self._lock:
            self.rest -= 1

    def begin(self, label: str) -> None:
        """An evaluation starts."""
        with self._lock:
            self._begun[label] = self._now()

    def finish(self, label: str, seconds: float | None = None) -> None:
        """One less; `seconds` where it was not told when it began. One that never began is skipped,
        unless it has `seconds`.
        """
        with self._lock:
            self.rest -= 1
            begun = self._begun.pop(label, None)
            if seconds is None and begun is not None:
                seconds = self._now() - begun
            if seconds is not None:
                self._durations.append(seconds)

    def seconds(self) -> float | None:
        """Seconds until all are through; None where nothing tells.

        At least what the rate so far says, once every place has finished two: candidates may wait
        for builds ahead, which belong to no evaluation's own time.
        """
        with self._lock:
            if self.rest <= 0:
                return 0.0
            if not self._durations:
                return None
            mean, now = statistics.fmean(self._durations), self._now()
            under_way = [max(mean - (now - begun), 0.0) for begun in self._begun.values()]
            waiting = max(self.rest - len(under_way), 0)
            found = (waiting * mean + sum(under_way)) / self.places
            if waiting == 0:
                found = max(under_way, default=mean)
            elif waiting <= self.places and not under_way:
                found = mean
            done = len(self._durations)
            if done >= 2 * self.places and waiting > 0:
                found = max(found, (now - self._first) / done * waiting)
            return found

    def told(self) -> str:
        """In words: "3 left, about 2 min"."""
        seconds = self.seconds()
        if self.rest <= 0:
            return "all done"
        return f"{self.rest} left" + (f", about {duration(seconds)}" if seconds is not None else "")


def duration(seconds: float) -> str:
    """Seconds as a person would say them: "40 s", "12 min", "3 h 20 min"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
