"""Processes that are all ended when their owner stops."""

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from harness.errors import EnvironmentUnfit

_STOP_SECONDS = 20
_KEPT_ERROR = 4000


class Stopped(Exception):
    """The owner stops: the process was not started, or ended early."""


class Processes:
    """Runs processes from several threads, each for `limit` seconds at most."""

    def __init__(self, limit: float):
        self.limit = limit
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._running: set[subprocess.Popen] = set()

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopping.is_set()

    def run(self, command: list[str], environment: dict, folder: Path) -> tuple[int, str]:
        """Run a process in `folder`; its exit status and the last line of its standard error.

        Raises Stopped when `stop` was called before or meanwhile.
        """
        with tempfile.TemporaryFile() as said:
            with self._lock:
                if self.stopped:
                    raise Stopped
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=said,
                    cwd=folder,
                    env={**os.environ, **environment},
                    start_new_session=True,  # a terminal's Ctrl-C is passed on by `stop` alone
                )
                self._running.add(process)
            try:
                process.wait(timeout=self.limit)
            except subprocess.TimeoutExpired:
                _end([process])
                return EnvironmentUnfit.exit_status, f"no end within {self.limit:g} s"
            finally:
                with self._lock:
                    self._running.discard(process)
            if self.stopped:
                raise Stopped
            said.seek(max(0, said.seek(0, os.SEEK_END) - _KEPT_ERROR))
            lines = said.read().decode(errors="replace").strip().splitlines() or [""]
        told = lines[-1].removeprefix("run_eval.py: error: ")
        if process.returncode < 0:
            name = signal.Signals(-process.returncode).name
            told = f"the evaluating process died of {name} ({told})"
        return process.returncode, told

    def stop(self) -> None:
        """End all that runs; nothing more can be run."""
        with self._lock:
            self._stopping.set()
            running = list(self._running)
        _end(running)


def _end(processes: list[subprocess.Popen]) -> None:
    """Ask, so that each can end what it has started; then force."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + _STOP_SECONDS
    for process in processes:
        try:
            process.wait(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
