"""The process a solution lives in: builds it, turns given inputs into outputs, reports times.

It knows neither the reference nor the truth and decides nothing. Everything it says is checked by
the harness, because the solution shares this process and could say it in its place.
"""

import base64
import faulthandler
import importlib.util
import os
import pickle
import resource
import socket
import sys
import time

import torch

from harness import devices
from harness.judge import ambient, joined, wire
from harness.judge.blame import MAX_TEXT, Failure, blamed, failure_of
from harness.judge.edits import floating
from harness.judge.memory import MemoryMeter, poisoned_memory
from harness.judge.worker_again import CallsAgain
from harness.measure import clock, passes


class Worker(CallsAgain):
    """Answers one request after the other; see the method of each operation's name."""

    def __init__(self, control: socket.socket, inbox: int, outbox: int):
        self.control, self.inbox, self.outbox = control, inbox, outbox
        self.model = self.constructor = None
        self.joins = False
        self.init = ""
        self.device = torch.device("cpu")
        self.stopwatch = None
        self.kept: list[torch.Tensor] = []  # outputs, the oldest first
        self.parameter_names: list[str] = []
        self.timed = None
        self.call = self.cold_call = self.prepare = None

    def serve(self) -> None:
        """Read requests until the harness hangs up."""
        wire.send_message(self.control, {"ready": os.getpid()})
        while True:
            try:
                request = wire.receive_message(self.control)
            except (EOFError, OSError):
                return
            if request["op"] == "quit":
                return
            try:
                reply = getattr(self, request["op"])(**request["arguments"])
            except Exception as error:  # also what a spoilt device raises between the calls
                known = isinstance(error, Failure)
                failure = error if known else failure_of(error, "runtime_error")
                reply = {"failure": failure.code, "message": str(failure)[-MAX_TEXT:]}
            wire.send_message(self.control, {"id": request["id"], **reply})

    # Operations --------------------------------------------------------------------------------

    def load(
        self,
        path: str,
        init: str,
        seed: int,
        device: str,
        dtype: str,
        tf32: str,
        joins: bool = False,
    ) -> dict:
        """Import the solution and construct ModelNew under `seed`; send its state_dict. With
        `joins` several outputs are joined to one (joined.py).
        """
        self.joins = joins
        self.device = torch.device(device)
        self.dtype = wire.DTYPES[dtype]
        self.switches = devices.tf32(tf32)  # kept: for the life of this process
        self.switches.__enter__()
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        flags = ambient.flags(self.device)
        with blamed("import_error"):
            spec = importlib.util.spec_from_file_location("solution", path)
            module = importlib.util.module_from_spec(spec)
            sys.modules["solution"] = module
            spec.loader.exec_module(module)
        self.constructor = getattr(module, "ModelNew", None)
        if self.constructor is None:
            raise Failure("no_model_new", "the solution defines no ModelNew")
        self.init = init
        with blamed("construct_error"):
            self._construct(seed)
            return {
                "state": self._send_state(0)[0],
                "aliases": _aliases(self.model.state_dict()),
                "changed_flags": ambient.changed(flags, ambient.flags(self.device)),
                "changed_random_states": [],  # a constructor draws its weights
            }

    def build(self, backward: bool, eval_mode: bool) -> dict:
        """Call the solution's build_libraries, if it has one."""
        with blamed("import_error"):
            build = getattr(sys.modules["solution"], "build_libraries", lambda **_: None)
            build(backward=backward, eval_mode=eval_mode)
        return {}

    def weights(self, state: list) -> dict:
        """Copy the given state, strictly, into the model, which lives on the device afterwards."""
        self._copy_state(self.model, state)
        return {}

    def draw_weights(self, seed: int) -> dict:
        """Construct the model anew under `seed`, on the device; its state and which of its names
        are parameters.
        """
        self.model = self.timed = self.call = self.cold_call = self.prepare = None
        with blamed("construct_error"):
            self._construct(seed)
            self.model.to(device=self.device, dtype=self.dtype)
            names = [name for name, _ in self.model.named_parameters(remove_duplicate=False)]
            return {"state": self._send_state(0)[0], "parameters": names}

    def order_parameters(self, names: list) -> dict:
        """The names of the parameters in the order in which their gradients are sent."""
        self.parameter_names = names
        return {}

    def forward(
        self,
        inputs: list,
        seed: int,
        max_bytes: int,
        training: bool,
        poison: bool = False,
        backward: bool = False,
        keep: int = 0,
        resend_kept: bool = False,
        measure_memory: bool = False,
        settle_s: float = 0.0,
    ) -> dict:
        """One call on the inputs in the inbox (the last tensor is the output's gradient if asked).

        The outbox then holds the output, once more after `settle_s` seconds if asked, the inputs
        and the state after the call, the gradients if asked, and once more the outputs of earlier
        calls if asked; the last `keep` outputs stay. Before `settle_s` it is what the current
        stream alone has made of it.
        """
        arguments, grad_output = self._receive(inputs, backward)
        self.timed = None
        self.model.train(training)
        torch.manual_seed(seed)
        for parameter in self.model.parameters():
            parameter.grad = None
        if backward:
            for value in floating(arguments):
                value.requires_grad_(True)
        memory = MemoryMeter(self.device, [*arguments, *self.model.state_dict().values()])
        with blamed("runtime_error"), poisoned_memory(poison):
            flags, states = ambient.flags(self.device), ambient.random_states(self.device)
            if measure_memory:
                memory.start()
            if backward:
                output = self.model(*arguments)
            else:
                output = clock.forward_call(self.model)(*arguments)
            peak_bytes = memory.stop() if measure_memory else None
            on_cuda = self.device.type == "cuda"
            early = clock.copied(output) if settle_s and on_cuda else output
            clock.synchronize(self.device)
            reply = {
                "output": self._describe_output(output, self.model),
                "peak_bytes": peak_bytes,
                "changed_flags": ambient.changed(flags, ambient.flags(self.device)),
                "changed_random_states": ambient.changed(
                    states, ambient.random_states(self.device)
                ),
            }
        if not self._can_send(output, max_bytes):
            return reply
        with blamed("runtime_error"):
            if backward:
                if not output.requires_grad:
                    raise Failure("missing_gradient", "the output is not part of a graph")
                if measure_memory:
                    memory.go_on()
                output.backward(grad_output)
                if measure_memory and (peak := memory.stop()) is not None:
                    copy_bytes = early.nbytes if early is not output else 0
                    reply["backward_peak_bytes"] = peak - copy_bytes
                clock.synchronize(self.device)
            offset = wire.write_tensor(self.outbox, 0, early)
            del early
            if settle_s:
                time.sleep(settle_s)
                clock.synchronize(self.device)
                offset = wire.write_tensor(self.outbox, offset, output)
            reply["inputs"], offset = self._send_tensors(list(_tensors(arguments)), offset)
            reply["state"], offset = self._send_state(offset)
            if backward:
                reply["gradients"], offset = self._send_gradients(arguments, offset)
            if resend_kept:
                _, offset = self._send_tensors(self.kept, offset)
            self.kept = [*self.kept, output.detach()][-keep:] if keep else []
        return reply

    def prepare_timing(self, inputs: list, part: str, training: bool) -> dict:
        """Keep the base inputs that every timed call's fresh input is made from; `part` is which of
        `passes` is timed.
        """
        self.kept, self.timed = [], None
        self.model.train(training)  # the last case may have been in the other mode
        base, grad_output = self._receive(inputs, part != passes.INFERENCE)
        clock.release_memory(self.device)
        if self.stopwatch is None:
            self.stopwatch = clock.Stopwatch(self.device)
        model, parameters = self.model, self._parameters()
        self.call, self.prepare = passes.timed_pass(
            part, model, model, base, grad_output, parameters
        )
        self.cold_call = self.model if part == passes.INFERENCE else self.call
        return {}

    def time(self, scales: list, keep: int) -> dict:
        """Time one call per scale; the output of call `keep` is kept for `fetch`."""
        self.timed = None
        with blamed("runtime_error"):
            times, self.timed = self.stopwatch.slice(self.call, self.prepare, scales, keep)
        return {"times_ms": times}

    def cold(self, scales: list, keep: int) -> dict:
        """As `time`, of cold calls with gradients enabled, which the solution may not be made for.

        An exception is then no failure.
        """
        self.timed = None
        try:
            with blamed("runtime_error"):
                times, self.timed = self.stopwatch.cold(self.cold_call, self.prepare, scales, keep)
        except Failure as failure:
            if failure.code not in ("runtime_error", "out_of_memory"):
                raise
            clock.release_memory(self.device)
            return {"refused": str(failure)[-MAX_TEXT:]}
        return {"times_ms": times}

    def burst(self, scales: list, count: int, indices: list) -> dict:
        """`count` calls in a row on inputs made beforehand: the harness reads its own clock.

        The last output is copied, and its elements at `indices` are read for the reply, before the
        clock stops: work still under way shows in both.
        """
        self.timed = None
        arguments = [self.prepare(scale) for scale in scales]
        clock.synchronize(self.device)
        clock.settle(self.device)
        wire.send_message(self.control, {"started": True})
        with blamed("runtime_error"):
            for index in range(count):
                output = self.call(*arguments[index % len(arguments)])
            self.timed = clock.copied(output)
            sample = clock.sampled(self.timed, indices)
            clock.synchronize(self.device)
        return {"sample": sample}

    def fetch(self, max_bytes: int) -> dict:
        """Send the output of the last timed call, or the gradients that it gave."""
        output = self.timed
        if type(output) is list:
            with blamed("runtime_error"):
                return {"gradients": self._send_optional(output, 0)[0]}
        reply = {"output": self._describe_output(output, self.model), "peak_bytes": None}
        if self._can_send(output, max_bytes):
            with blamed("runtime_error"):
                wire.write_tensor(self.outbox, 0, output)
        return reply

    def finish(self) -> dict:
        """Let go of everything the solution made, so that its destructors run."""
        self.model = self.timed = self.stopwatch = None
        self.call = self.cold_call = self.prepare = self.second = self.constructor = None
        self.kept, self.held = [], []
        with blamed("runtime_error"):
            module = sys.modules.pop("solution", None)
            vars(module).pop("ModelNew", None)
            del module
            clock.release_memory(self.device)
        return {}

    # Helpers -----------------------------------------------------------------------------------

    def _construct(self, seed: int) -> None:
        arguments = pickle.loads(base64.b64decode(self.init))
        torch.manual_seed(seed)
        self.model = self._joining(self.constructor(*arguments))

    def _joining(self, model: torch.nn.Module) -> torch.nn.Module:
        return joined.join_outputs(model) if self.joins else model

    def _receive(self, inputs: list, with_gradient: bool) -> tuple[list, torch.Tensor | None]:
        offset, arguments = 0, []
        for entry in inputs:
            if "pickled" in entry:
                arguments.append(pickle.loads(base64.b64decode(entry["pickled"])))
                continue
            arguments.append(wire.read_tensor(self.inbox, offset, entry, self.device))
            offset += wire.spec_bytes(entry)
        grad_output = arguments.pop() if with_gradient else None
        return arguments, grad_output

    def _can_send(self, output, max_bytes: int) -> bool:
        """Whether the output may be worth reading; if not, its description rejects it."""
        plain = type(output) is torch.Tensor and output.layout is torch.strided
        plain = plain and output.device.type == self.device.type
        return plain and output.nbytes <= max_bytes

    def _describe_output(self, output, model: torch.nn.Module) -> dict:
        if type(output) is not torch.Tensor:
            return {"type": type(output).__name__[:80]}
        if output.layout is not torch.strided:
            return {"type": f"Tensor of layout {output.layout}"}
        described = {"type": "Tensor", "device": str(output.device), **wire.spec_of(output)}
        if (layout := joined.layout_of(model)) is not None:
            described["layout"] = layout
        return described

    def _send_tensors(self, tensors: list, offset: int) -> tuple[list, int]:
        for tensor in tensors:
            offset = wire.write_tensor(self.outbox, offset, tensor)
        return [wire.spec_of(tensor) for tensor in tensors], offset

    def _send_gradients(self, arguments: list, offset: int) -> tuple[list, int]:
        """The gradients of inputs, then of parameters; None stands for one that is missing."""
        holders = [*floating(arguments), *self._parameters()]
        gradients = [None if holder is None else holder.grad for holder in holders]
        return self._send_optional(gradients, offset)

    def _parameters(self) -> list[torch.nn.Parameter | None]:
        """In the reference's order; None for a name that is gone."""
        parameters = dict(self.model.named_parameters(remove_duplicate=False))
        return [parameters.get(name) for name in self.parameter_names]

    def _send_optional(self, tensors: list, offset: int) -> tuple[list, int]:
        specs = [None if tensor is None else wire.spec_of(tensor) for tensor in tensors]
        _, offset = self._send_tensors([t for t in tensors if t is not None], offset)
        return specs, offset

    def _copy_state(self, model: torch.nn.Module, state: list) -> None:
        """The state in the inbox, copied strictly into a model, which moves to the device."""
        with blamed("state_dict_mismatch"):
            model.to(device=self.device, dtype=self.dtype)
            offset, tensors = 0, {}
            for entry in state:
                tensors[entry["name"]] = wire.read_tensor(self.inbox, offset, entry, self.device)
                offset += wire.spec_bytes(entry)
            model.load_state_dict(tensors, strict=True)

    def _send_state(self, offset: int) -> tuple[list, int]:
        entries = []
        for name, tensor in self.model.state_dict().items():
            offset = wire.write_tensor(self.outbox, offset, tensor)
            entries.append({"name": name, **wire.spec_of(tensor)})
        return entries, offset


def _aliases(state: dict) -> dict[str, str]:
    """For every further name of a tensor its first name."""
    first: dict[tuple, str] = {}
    found = {}
    for name, tensor in state.items():
        if tensor.numel():
            place = (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)
            if first.setdefault(place, name) != name:
                found[name] = first[place]
    return found


def _tensors(values: list) -> list:
    return [value for value in values if isinstance(value, torch.Tensor)]


def main() -> None:
    """Serve on the file descriptors given as arguments: control socket, inbox, outbox."""
    control_fd, inbox, outbox, threads, memory_bytes = (int(text) for text in sys.argv[1:6])
    sys.argv[1:] = []
    for fd in (control_fd, inbox, outbox):
        os.set_inheritable(fd, False)
    if memory_bytes:
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    faulthandler.enable()
    torch.set_num_threads(threads)
    Worker(socket.socket(fileno=control_fd), inbox, outbox).serve()
    sys.stdout.flush()
    # Whatever the solution registered for exit is not given another chance to hang.
    os._exit(0)
