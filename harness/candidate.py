"""The harness's side of a solution's process: start it, ask it, watch the time, end it."""

import base64
import contextlib
import math
import os
import pickle
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

import torch

from harness import clock, keeper, wire
from harness.catalog import ROOT
from harness.errors import Rejected

_BOOT = (
    "import sys; sys.path.insert(0, {root!r}); from harness.keeper import stay_below_a_keeper; "
    "stay_below_a_keeper(); from harness.worker import main; sys.path.remove({root!r}); main()"
)
_KEPT_OUTPUT = 64 << 10
_START_SECONDS = 120
_IDLE_SECONDS = 0.25  # how long idleness is watched, and how often at most
_IDLE_TRIES = 4
_MEMORY_FRACTION = 0.9  # of the memory available at the start
FAILURE_CODES = {
    "exit",
    "import_error",
    "no_model_new",
    "construct_error",
    "state_dict_mismatch",
    "runtime_error",
    "wrong_type",
    "missing_gradient",
    "out_of_memory",
}


class Candidate:
    """One solution in its own process, which is ended with everything it started on `close`.

    `memory_bytes` is how much host memory the solution's processes may hold together, by default
    nine tenths of what is available. `limit_time` sets how many seconds it may spend, over all
    requests together. Each request raises Rejected when the process dies, overruns, breaks the
    protocol or reports a failure.
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
        self.limit_time(600.0)
        self.folder = Path(tempfile.mkdtemp(prefix="evaluation-"))
        self.inbox, self.outbox = wire.anonymous_file(), wire.anonymous_file()
        self.control, theirs = socket.socketpair()
        self.control.settimeout(60)  # for sending; receiving has its own deadline
        fds = (theirs.fileno(), self.inbox, self.outbox)
        arguments = [str(fd) for fd in fds] + [str(torch.get_num_threads())]
        # CUDA reserves far more address space than it uses: there only the watching counts.
        arguments.append(str(self.memory_bytes if device.type == "cpu" else 0))
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", _BOOT.format(root=str(ROOT)), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.folder,
            env=self._environment(build_dir or self.folder / "build"),
            pass_fds=fds,
            start_new_session=True,
        )
        theirs.close()
        self._printed = b""
        self._drain = threading.Thread(target=self._read_output, daemon=True)
        self._drain.start()

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
        keeper.end_all(self.process.pid, self.nonce)
        self.process.kill()
        keeper.end_all(None, self.nonce)
        self.process.wait()
        self.control.close()
        os.close(self.inbox)
        os.close(self.outbox)
        self._drain.join(timeout=2)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> "Candidate":
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def limit_time(self, seconds: float) -> None:
        """From now on the solution may spend this many seconds."""
        self.timeout = self.remaining = seconds

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

    # Requests ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Wait until the process is ready; its start-up is not the solution's time."""
        deadline = time.monotonic() + _START_SECONDS
        reply = self._receive(deadline, "starting")
        if type(reply.get("ready")) is not int:
            raise Rejected("protocol_violation", "the process's first message is not 'ready'")

    def request(self, op: str, doing: str, **arguments) -> dict:
        """Send a request and return its reply; `doing` names the step in a rejection."""
        identity, deadline = self._send(op, doing, arguments)
        return self._reply(identity, deadline, doing)

    def _send(self, op: str, doing: str, arguments: dict) -> tuple[str, float]:
        # Harness and solution share the device and never work on it at the same time.
        clock.synchronize(self.device)
        identity = secrets.token_hex(8)
        try:
            message = {"op": op, "id": identity, "arguments": arguments}
            wire.send_message(self.control, message)
        except OSError:
            raise self._dead(doing) from None
        self._begun = time.monotonic()
        return identity, self._begun + self.remaining

    def _reply(self, identity: str, deadline: float, doing: str) -> dict:
        reply = self._receive(deadline, doing)
        self.remaining -= time.monotonic() - self._begun
        if reply.pop("id", None) != identity:
            raise Rejected("protocol_violation", f"a forged reply while {doing}")
        if "failure" in reply:
            code = reply["failure"]
            if not isinstance(code, str) or code not in FAILURE_CODES:
                raise Rejected("protocol_violation", f"an unknown failure while {doing}")
            raise Rejected(code, f"while {doing}: {str(reply.get('message'))[:4000]}")
        return reply

    def _receive(self, deadline: float, doing: str) -> dict:
        try:
            return wire.receive_message(self.control, deadline, alive=self._alive)
        except TimeoutError:
            limit = f"{self.timeout:g} s" if doing != "starting" else f"{_START_SECONDS} s"
            raise Rejected("timeout", f"no end within {limit}, while {doing}") from None
        except (EOFError, OSError):
            raise self._dead(doing) from None
        except wire.WireError as error:
            raise Rejected("protocol_violation", f"{error}, while {doing}") from None

    def _alive(self) -> bool:
        """Whether the process lives; asked several times a second while it works."""
        held = keeper.resident_bytes(self.processes())
        if held > self.memory_bytes:
            raise Rejected(
                "out_of_memory",
                f"the solution's processes hold {held >> 20} MiB, allowed are "
                f"{self.memory_bytes >> 20} MiB",
            )
        return self.process.poll() is None

    def _dead(self, doing: str) -> Rejected:
        try:
            status = self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return Rejected("protocol_violation", f"the connection was closed while {doing}")
        self._drain.join(timeout=1)
        tail = self.printed()[-600:]
        said = f"; last output: {tail}" if tail else ""
        if status < 0:
            name = signal.Signals(-status).name
            return Rejected("crash", f"the process died of {name} while {doing}{said}")
        return Rejected("exit", f"the process exited with status {status} while {doing}{said}")

    # Operations --------------------------------------------------------------------------------

    def load(
        self, solution: Path, init_inputs: list, seed: int, dtype: torch.dtype, tf32: str
    ) -> dict:
        """Build the solution; its freshly drawn state_dict, on the CPU, by name."""
        # A copy, alone in a folder: the solution may lean on no neighbouring file.
        path = self.folder / "solution.py"
        shutil.copyfile(solution, path)
        reply = self.request(
            "load",
            "building",
            path=str(path),
            init=base64.b64encode(pickle.dumps(init_inputs)).decode(),
            seed=seed,
            device=str(self.device),
            dtype=wire.dtype_name(dtype),
            tf32=tf32,
        )
        require_unchanged(reply, "importing and constructing it")
        return self.read_state(reply, 0)[0]

    def load_weights(self, state: dict) -> None:
        """Copy a state_dict into the solution's model."""
        offset, entries = 0, []
        for name, tensor in state.items():
            offset = wire.write_tensor(self.inbox, offset, tensor)
            entries.append({"name": name, **wire.spec_of(tensor)})
        self.request("weights", "copying the weights", state=entries)

    def send_inputs(self, values: list) -> list:
        """Write input values into the inbox; returns their descriptions for a request."""
        offset, entries = 0, []
        for value in values:
            if isinstance(value, torch.Tensor):
                offset = wire.write_tensor(self.inbox, offset, value)
                entries.append(wire.spec_of(value))
            else:
                entries.append({"pickled": base64.b64encode(pickle.dumps(value)).decode()})
        return entries

    def time(self, scales: list[float], keep: int = -1) -> list[float]:
        """Device times in milliseconds of one call per scale; output `keep` can be fetched."""
        times = self.request("time", "timing", scales=scales, keep=keep).get("times_ms")
        valid = isinstance(times, list) and len(times) == len(scales)
        if not valid or not all(
            type(value) is float and math.isfinite(value) and value > 0 for value in times
        ):
            raise Rejected("protocol_violation", "times that are not positive numbers")
        return times

    def burst(self, scales: list[float], count: int) -> float:
        """Milliseconds per call by the harness's own clock, over `count` calls in a row."""
        doing = "timing"
        identity, deadline = self._send("burst", doing, {"scales": scales, "count": count})
        if self._receive(deadline, doing) != {"started": True}:
            raise Rejected("protocol_violation", "a burst that did not announce its start")
        begin = time.perf_counter()
        self._reply(identity, deadline, doing)
        return (time.perf_counter() - begin) * 1e3 / count

    # Reading what came back --------------------------------------------------------------------

    def read(self, offset: int, spec: dict, device: torch.device) -> torch.Tensor:
        """The tensor at `offset` of the outbox; `spec` is the harness's own, never the worker's."""
        try:
            return wire.read_tensor(self.outbox, offset, spec, device)
        except wire.WireError as error:
            raise Rejected("protocol_violation", str(error)) from None

    def read_state(self, reply: dict, offset: int) -> tuple[dict, int]:
        """The state_dict that a reply announces, on the CPU, and the offset after it."""
        state = {}
        for entry in checked_specs(reply.get("state"), named=True):
            state[entry["name"]] = self.read(offset, entry, torch.device("cpu"))
            offset += wire.spec_bytes(entry)
        return state, offset


def require_unchanged(reply: dict, doing: str) -> None:
    """Raise Rejected when a reply names process-wide state that the solution has changed."""
    for key in ("flags", "random_states"):
        names = reply.get(f"changed_{key}")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise Rejected("protocol_violation", f"a malformed list of changed {key}")
        if names:
            code = "global_state_changed" if key == "flags" else "random_state_changed"
            raise Rejected(code, f"{doing} changed: {', '.join(names)[:500]}")


def checked_specs(entries, named: bool = False) -> list[dict]:
    """Tensor descriptions from a worker, validated in type and size.

    Raises Rejected for anything else than a list of {"shape", "dtype"} (and "name") of sane size.
    """
    keys = {"shape", "dtype", "name"} if named else {"shape", "dtype"}
    good = isinstance(entries, list) and all(
        isinstance(entry, dict)
        and set(entry) == keys
        and isinstance(entry["dtype"], str)
        and entry["dtype"] in wire.DTYPES
        and isinstance(entry["shape"], list)
        and all(type(size) is int and 0 <= size < 1 << 40 for size in entry["shape"])
        and (not named or isinstance(entry["name"], str))
        for entry in entries
    )
    if not good:
        raise Rejected("protocol_violation", "a malformed description of tensors")
    return entries
