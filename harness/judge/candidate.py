"""The harness's side of a solution's process: ask it, watch the time, check what it says."""

import base64
import math
import pickle
import secrets
import shutil
import signal
import subprocess
import time
from pathlib import Path

import torch

from harness.errors import Refused, Rejected
from harness.judge import wire
from harness.judge.candidate_process import CandidateProcess
from harness.judge.drawn import Drawn
from harness.measure import clock
from harness.measure.device_memory import DeviceMemory

_START_SECONDS = 120
FAILURE_CODES = {
    "exit",
    "import_error",
    "no_model_new",
    "construct_error",
    "state_dict_mismatch",
    "runtime_error",
    "device_error",
    "wrong_type",
    "missing_gradient",
    "out_of_memory",
}


class Candidate(CandidateProcess):
    """One solution in its own process, and the requests to it.

    `limit_time` sets how many seconds it may spend, over all requests together. `busy_s` is what
    it has spent. Each request raises Rejected when the process dies, overruns, breaks the
    protocol, holds too much memory or reports a failure.
    """

    def __init__(
        self,
        device: torch.device,
        build_dir: Path | None = None,
        memory_bytes: int | None = None,
    ):
        super().__init__(device, build_dir, memory_bytes)
        self.busy_s = 0.0
        self.names: dict[str, str] = {}  # the reference's, by the solution's
        self.same_seed = False  # nothing is copied: each instance is constructed from a seed
        self.drawn: dict[str, torch.Tensor] = {}  # then, the instance's state
        self.parameters: set[str] = set()  # and which of it are parameters
        self.aliases: dict[str, str] = {}
        self.limit_time(600.0)

    def limit_time(self, seconds: float) -> None:
        """From now on the solution may spend this many seconds."""
        self.timeout = self.remaining = seconds

    # Requests ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Wait until the process is ready; its start-up is not the solution's time."""
        self.device_memory = DeviceMemory(self.device)
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
        spent = time.monotonic() - self._begun
        self.remaining -= spent
        self.busy_s += spent
        if reply.pop("id", None) != identity:
            raise Rejected("protocol_violation", f"a forged reply while {doing}")
        if "failure" in reply:
            code = reply["failure"]
            if not isinstance(code, str) or code not in FAILURE_CODES:
                raise Rejected("protocol_violation", f"an unknown failure while {doing}")
            raise Rejected(code, f"while {doing}: {str(reply.get('message'))[:4000]}")
        self.device_memory.require_room()
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
        self.require_little_memory()
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
        self,
        solution: Path,
        init_inputs: list,
        seed: int,
        dtype: torch.dtype,
        tf32: str,
        joins: bool = False,
    ) -> dict:
        """Build the solution, whose outputs are joined with `joins`; its freshly drawn state_dict,
        on the CPU, by name.
        """
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
            joins=joins,
        )
        require_unchanged(reply, "importing and constructing it")
        state, aliases = self.read_state(reply, 0)[0], reply.get("aliases")
        pairs = aliases.items() if isinstance(aliases, dict) else ()
        self.aliases = {name: first for name, first in pairs if {name, first} <= set(state)}
        return state

    def build(self, backward: bool, eval_mode: bool) -> None:
        """Compile what the solution, loaded, compiles only when it is called, if it tells how."""
        self.request("build", "building", backward=backward, eval_mode=eval_mode)

    def name_weights(self, names: dict[str, str], parameters: list[str]) -> None:
        """From now on states have the reference's names: `names` has them by the solution's.

        `parameters` are the reference's, in whose order gradients come.
        """
        self.names = names
        own = {reference: name for name, reference in reversed(names.items())}
        ordered = [own[name] for name in parameters]
        self.request("order_parameters", "building", names=ordered)

    def load_weights(self, state: dict) -> None:
        """Copy a state_dict into the solution's model; construct it anew from that of a seed."""
        if isinstance(state, Drawn):
            doing = "constructing it from another seed"
            reply = self.request("draw_weights", doing, seed=state.seed)
            self.drawn, _ = self.read_state(reply, 0)
            names = reply.get("parameters")
            self.parameters = set(names if isinstance(names, list) else ()) & set(self.drawn)
            return
        self.request("weights", "copying the weights", state=self.send_state(state))

    def send_state(self, state: dict) -> list:
        """Write a state_dict into the inbox; returns its description for a request."""
        offset, entries = 0, []
        for name, reference in (self.names or {name: name for name in state}).items():
            tensor = state[reference]
            offset = wire.write_tensor(self.inbox, offset, tensor)
            entries.append({"name": name, **wire.spec_of(tensor)})
        return entries

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
        return checked_times(self.request("time", "timing", scales=scales, keep=keep), len(scales))

    def cold(self, scales: list[float], keep: int = -1) -> list[float]:
        """As `time`, of cold calls with gradients enabled.

        Raises Refused where the solution raises an exception then, which is not held against it.
        """
        reply = self.request("cold", "timing cold calls", scales=scales, keep=keep)
        if isinstance(reply.get("refused"), str):
            raise Refused(reply["refused"][:500])
        return checked_times(reply, len(scales))

    def burst(self, scales: list[float], count: int, indices: list[int]) -> tuple[float, list]:
        """Milliseconds per call by the harness's own clock, over `count` calls in a row.

        Also the last output's elements at the flat indices, None for those that are not finite:
        the clock stops when they have come.
        """
        doing, arguments = "timing", {"scales": scales, "count": count, "indices": indices}
        identity, deadline = self._send("burst", doing, arguments)
        if self._receive(deadline, doing) != {"started": True}:
            raise Rejected("protocol_violation", "a burst that did not announce its start")
        begin = time.perf_counter()
        reply = self._reply(identity, deadline, doing)
        milliseconds = (time.perf_counter() - begin) * 1e3 / count
        sample = reply.get("sample")
        valid = isinstance(sample, list) and len(sample) == len(indices)
        if not valid or not all(value is None or type(value) is float for value in sample):
            raise Rejected("protocol_violation", "a sample that is not a list of numbers")
        return milliseconds, sample

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
            name = self.names.get(entry["name"], entry["name"])
            value = self.read(offset, entry, torch.device("cpu"))
            state.setdefault(name, value)  # a tensor of several names comes several times
            offset += wire.spec_bytes(entry)
        return state, offset


def checked_times(reply: dict, count: int) -> list[float]:
    """The times that a reply announces; raises Rejected unless they are `count` positive ones."""
    times = reply.get("times_ms")
    valid = isinstance(times, list) and len(times) == count
    if not valid or not all(
        type(value) is float and math.isfinite(value) and value > 0 for value in times
    ):
        raise Rejected("protocol_violation", "times that are not positive numbers")
    return times


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
