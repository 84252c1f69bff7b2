"""What the user sees while an evaluation runs, on standard error."""

import sys
import time

from rich.console import Console


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
