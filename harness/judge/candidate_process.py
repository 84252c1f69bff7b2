"""A solution's process: start it, see what it does, end it with everything it has started."""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Self

import torch

from harness.catalog import ROOT
from harness.errors import Rejected
from harness.judge import keeper, wire

_BOOT = (
    "import sys; sys.path.insert(0, {root!r}); "
    "from harness.judge.keeper import stay_below_a_keeper; "
    "stay_below_a_keeper(); from harness.judge.worker import main; "
    "sys.path.remove({root!r}); main()"
)
_KEPT_OUTPUT = 64 << 10
_IDLE_SECONDS = 0.25  # how long idleness is watched, and how often at most
_IDLE_TRIES = 4
_DEVICE_STOP_SECONDS = 60.0
_MEMORY_FRACTION = 0.9  # of the memory available at the start


class CandidateProcess:
    """One solution in its own process, which is ended with everything it started on `close`.

    `memory_bytes` is how much host memory the solution's processes may hold together, by default
    nine tenths of what is available.
    """

    def __init__(
        self,
        device: torch.device,
        build_dir: Path | None = None,
        memory_bytes: int | None = None,
    ):
        self.device = device
        self.nonce = secrets.token_hex(16)
        self.memory_bytes = memory_bytes or int(keeper.available_bytes() * _MEMORY_FRACTION)
        self.folder = Path(tempfile.mkdtemp(prefix="evaluation-"))
        self.inbox, self.outbox = wire.anonymous_file(), wire.anonymous_file()
        self.control, theirs = socket.socketpair()
        self.control.settimeout(60)  # for sending; receiving has its own deadline
        fds = (theirs.fileno(), self.inbox, self.outbox)
        arguments = [str(fd) for fd in fds] + [str(torch.get_num_threads())]
        # CUDA reserves far more address space than it uses: there only the watching counts.
        arguments.append(str(self.memory_bytes if device.type == "cpu" else 0))
        environment = self._environment(build_dir or self.folder / "build")
        self.process = self._launched(arguments, environment, fds)
        theirs.close()
        self._printed = b""
        self._drain = threading.Thread(target=self._read_output, daemon=True)
        self._drain.start()

    def _launched(self, arguments: list[str], environment: dict, fds: tuple) -> subprocess.Popen:
        """The keeper's process, below which the solution's starts; what both print is in stdout."""
        return subprocess.Popen(
            [sys.executable, "-P", "-c", _BOOT.format(root=str(ROOT)), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.folder,
            env=environment,
            pass_fds=fds,
            start_new_session=True,
        )

    def _environment(self, build_dir: Path) -> dict:
        """The environment, with private caches and this Python's tools (ninja) on PATH."""
        build_dir.mkdir(parents=True, exist_ok=True)
        own = {
            "TORCH_EXTENSIONS_DIR": str(build_dir.resolve()),
            "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "inductor"),
            "TRITON_CACHE_DIR": str(self.folder / "triton"),
            "TMPDIR": str(self.folder),
            "PYTHONDONTWRITEBYTECODE": "1",
            keeper.NONCE: self.nonce,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        }
        return {**os.environ, **own}

    def _read_output(self) -> None:
        """Drain what the solution prints, keeping only the end of it."""
        stream = self.process.stdout
        try:
            while part := os.read(stream.fileno(), _KEPT_OUTPUT):
                self._printed = (self._printed + part)[-_KEPT_OUTPUT:]
        except (OSError, ValueError):
            return

    def printed(self) -> str:
        """The end of what the process has printed."""
        return self._printed.decode(errors="replace").strip()

    def close(self) -> None:
        """End the process and all that it started; remove its files."""
        # The keeper goes last: while it lives, whoever loses a parent is found below it.
        # A GPU's driver may need a while to stop what the process has left running there.
        seconds = 5.0 if self.device.type == "cpu" else _DEVICE_STOP_SECONDS
        keeper.end_all(self.process.pid, self.nonce, seconds)
        self.process.kill()
        keeper.end_all(None, self.nonce, seconds)
        self.process.wait()
        self.control.close()
        os.close(self.inbox)
        os.close(self.outbox)
        self._drain.join(timeout=2)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    # Its processes ----------------------------------------------------------------------------

    def processes(self) -> set[int]:
        """The solution's process and everything it has started, wherever that has gone."""
        return keeper.family(self.process.pid, self.nonce)

    @contextlib.contextmanager
    def paused(self):
        """While the harness times something of its own, nothing of the solution's runs."""
        stopped = self.processes()
        keeper.signal_all(stopped, signal.SIGSTOP)
        try:
            yield
        finally:
            keeper.signal_all(stopped, signal.SIGCONT)

    def require_idle(self) -> None:
        """Raise Rejected when the solution works on although nothing has been asked of it.

        Thread pools spin for a moment before they sleep, hence several tries.
        """
        for _ in range(_IDLE_TRIES):
            everyone = self.processes() | {self.process.pid}
            before = keeper.cpu_seconds(everyone)
            time.sleep(_IDLE_SECONDS)
            used = keeper.cpu_seconds(everyone) - before
            if used <= 0.2 * _IDLE_SECONDS:
                return
        raise Rejected(
            "background_work",
            f"{used / _IDLE_SECONDS:.1f} processors busy although nothing was asked for",
        )

    def require_little_memory(self) -> None:
        """Raise Rejected when the solution's processes hold more host memory than they may."""
        held = keeper.resident_bytes(self.processes())
        if held > self.memory_bytes:
            raise Rejected(
                "out_of_memory",
                f"the solution's processes hold {held >> 20} MiB, allowed are "
                f"{self.memory_bytes >> 20} MiB",
            )
