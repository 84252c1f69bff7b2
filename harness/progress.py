"""What the user sees while an evaluation runs, on standard error."""

import sys
import threading
import time

from rich.console import Console
from rich.markup import escape


class Progress:
    """Shows the present step: a live line on a terminal, one plain line per step elsewhere."""

    def __init__(self, stream=None):
        self._console = Console(file=stream or sys.stderr, highlight=False)
        self._live = self._console.is_terminal
        self._status = None
        self._title = ""
        self._began = time.monotonic()

    def begin(self, title: str) -> None:
        """A new evaluation starts."""
        self._title, self._began = title, time.monotonic()
        if self._live:
            self._status = self._console.status(title)
            self._status.start()

    def step(self, text: str) -> None:
        """The evaluation's next step."""
        line = f"{self._title}: {text}"
        if self._status is not None:
            self._status.update(line)
        else:
            seconds = time.monotonic() - self._began
            self._console.print(f"[{seconds:6.1f} s] {line}", markup=False, soft_wrap=True)

    def end(self) -> None:
        """The evaluation is over."""
        if self._status is not None:
            self._status.stop()
            self._status = None


class Silent:
    """No display at all."""

    def begin(self, title: str) -> None:
        """Nothing."""

    def step(self, text: str) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""


class SuiteProgress:
    """How far a suite is: a live line on a terminal, and one plain line per finished candidate."""

    def __init__(self, total: int, stream=None):
        self._console = Console(file=stream or sys.stderr, highlight=False)
        self._total = total
        self._done = self._kept = 0
        self._began = time.monotonic()
        self._doing: dict[str, str] = {}
        self._lock = threading.Lock()
        self._status = None
        if self._console.is_terminal:
            self._status = self._console.status("starting")
            self._status.start()

    def kept(self, label: str) -> None:
        """A candidate whose record is kept as it is."""
        with self._lock:
            self._kept += 1
            self._done += 1
            self._print(f"{label}: kept from an earlier run")

    def doing(self, worker: str, what: str | None) -> None:
        """What a worker does now; None for nothing more."""
        with self._lock:
            self._doing.pop(worker, None)
            if what is not None:
                self._doing[worker] = what
            self._update()

    def done(self, label: str, told: str) -> None:
        """A candidate is through."""
        with self._lock:
            self._done += 1
            self._print(f"{label}: {told}; {self._left()}")
            self._update()

    def end(self) -> None:
        """The suite is over."""
        with self._lock:
            if self._status is not None:
                self._status.stop()
                self._status = None

    def _left(self) -> str:
        """The time left, from the mean time between two finished candidates of this run."""
        new, rest = self._done - self._kept, self._total - self._done
        if rest == 0:
            return "all done"
        if new == 0:
            return f"{rest} left"
        seconds = (time.monotonic() - self._began) / new * rest
        return f"{rest} left, about {duration(seconds)}"

    def _print(self, line: str) -> None:
        counted = f"[{self._done}/{self._total}] {line}"
        self._console.print(counted, markup=False, soft_wrap=True)

    def _update(self) -> None:
        if self._status is not None:
            doing = ", ".join(f"{worker}: {what}" for worker, what in self._doing.items())
            self._status.update(escape(f"{self._done}/{self._total}, {self._left()}; {doing}"))


def duration(seconds: float) -> str:
    """Seconds as a person would say them: "40 s", "12 min", "3 h 20 min"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
