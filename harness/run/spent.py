"""Where the seconds of an evaluation go."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

_fresh = True


class Spent:
    """Seconds by what they were spent on, since the process began or, after that, since now."""

    def __init__(self):
        global _fresh
        self._began = time.monotonic() - (_process_age() if _fresh else 0.0)
        _fresh = False
        self.seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def on(self, what: str) -> Iterator[None]:
        """What happens inside is spent on `what`."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self.add(what, time.monotonic() - begin)

    def add(self, what: str, seconds: float) -> None:
        """More seconds on `what`."""
        self.seconds[what] = self.seconds.get(what, 0.0) + seconds

    def summary(self) -> dict[str, float]:
        """All entries, the `wall` time so far, and as `overhead` what is left of it."""
        wall = time.monotonic() - self._began
        return {"wall": wall, **self.seconds, "overhead": wall - sum(self.seconds.values())}


def _process_age() -> float:
    """Seconds since this process was started, imports included; 0 where the system does not say."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)
    except (OSError, ValueError, IndexError):
        return 0.0
