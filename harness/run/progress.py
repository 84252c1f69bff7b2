"""What the user sees while an evaluation runs, on standard error."""

import sys
import threading
import time

from rich.console import Console
from rich.text import Text

from harness.run.time_left import TimeLeft


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
        self._done = 0
        self._left = TimeLeft(total)
        self._doing: dict[str, str] = {}
        self._lock = threading.Lock()
        self._status = None
        if self._console.is_terminal:
            self._status = self._console.status(self)
            self._status.start()

    def at(self, places: int) -> None:
        """So many candidates are evaluated at a time."""
        self._left.places = places

    def kept(self, label: str) -> None:
        """A candidate whose record is kept as it is."""
        with self._lock:
            self._done += 1
            self._left.skip()
            self._print(f"{label}: kept from an earlier run")

    def doing(self, worker: str, what: str | None) -> None:
        """Which candidate a worker evaluates now; None for none any more."""
        with self._lock:
            self._doing.pop(worker, None)
            if what is not None:
                self._doing[worker] = what
                self._left.begin(what)

    def under_way(self, count: int) -> None:
        """So many candidates are evaluated now, which it is not known."""
        with self._lock:
            self._doing["together"] = f"{count} under way"

    def done(self, label: str, told: str, seconds: float | None = None) -> None:
        """A candidate is through, after `seconds` where `doing` has not said when it began."""
        with self._lock:
            self._done += 1
            self._left.finish(label, seconds)
            self._print(f"{label}: {told}; {self._left.told()}")

    def end(self) -> None:
        """The suite is over."""
        with self._lock:
            if self._status is not None:
                self._status.stop()
                self._status = None

    def _print(self, line: str) -> None:
        counted = f"[{self._done}/{self._total}] {line}"
        self._console.print(counted, markup=False, soft_wrap=True)

    def __rich__(self) -> Text:
        """The live line, drawn anew several times a second."""
        doing = ", ".join(f"{worker}: {what}" for worker, what in tuple(self._doing.items()))
        return Text(f"{self._done}/{self._total}, {self._left.told()}; {doing}")
