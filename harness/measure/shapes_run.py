"""One operator library, many layers: each checked against float64 and timed beside PyTorch.

The solution runs in this process, unlike an evaluation's: it is this project's own, so the walls
that keep a stranger's in would only cost time. Checks, clock and order of calls are the same.
"""

import contextlib
import importlib.util
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch

from harness import devices
from harness.catalog import find_problem
from harness.errors import Rejected, UsageError
from harness.judge import check, wire
from harness.judge.cases import Case, generator
from harness.judge.gradient_check import layer_scales, require_right_gradient
from harness.judge.reference import Reference
from harness.judge.truth import Expected, expected
from harness.measure import clock, passes, timing
from harness.measure.convolution_baseline import offered
from harness.measure.roofline import work_of
from harness.measure.shapes_cases import Shape

# Its model takes every argument of nn.ConvTranspose2d but padding_mode. So do the references in
# layers/ those of one and three dimensions.
PROBLEM = "1/69"
_LAYERS = Path(__file__).resolve().parent / "layers"
BASELINES = ("eager", "channels_last")
SEED = 2026
# A CPU's batch is cut to about this much work a call.
_CPU_FLOPS = 1e9
_KERNELS = {
    "conv_transpose_hopper_kernel": "hopper",
    "conv_transpose_direct_kernel": "direct",
    "conv_transpose_portable_kernel": "portable",
    "conv_transpose_plain_kernel": "plain",
    "input_gradient_plain_kernel": "plain",
    "weight_gradient_hopper_kernel": "hopper weights",
    "weight_gradient_one_tap_kernel": "hopper weights",
    "weight_gradient_portable_kernel": "portable weights",
    "weight_gradient_plain_kernel": "plain weights",
}
_LEAST_SHARE = 0.02  # of a call: shorter kernels are fallbacks that had nothing to do


@dataclass(frozen=True)
class Options:
    """How to measure; `batch` None means each shape's own, on a CPU cut."""

    device: torch.device
    dtype: torch.dtype
    tf32: str
    baselines: tuple[str, ...] = BASELINES
    batch: int | None = None
    backward: bool = False  # a training step in place of inference


def reference_of(dimensions: int) -> Path:
    """The reference whose model is of that many dimensions."""
    if dimensions == 2:
        return find_problem(PROBLEM).reference
    return _LAYERS / f"conv_transpose_{dimensions}d.py"


def load_solution(path: Path, build_dir: Path, device: torch.device) -> tuple[ModuleType, float]:
    """The solution as a module, built in `build_dir`, and the seconds that took.

    Raises UsageError for a missing file and EnvironmentUnfit for a missing compiler.
    """
    if not path.is_file():
        raise UsageError(f"--solution {path}: no such file")
    devices.require_build_tools(path.read_text(errors="replace"), device)
    build_dir.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    with build_environment(build_dir):
        spec = importlib.util.spec_from_file_location("shapes_solution", path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    return module, time.monotonic() - begin


def executed(path: Path, build_dir: Path, device: torch.device) -> dict:
    """The names that a solution's text defines, executed as a suite does it: without a file.

    Built and raising as `load_solution`.
    """
    if not path.is_file():
        raise UsageError(f"solution {path}: no such file")
    text, names = path.read_text(), {"__name__": "solution"}
    devices.require_build_tools(text, device)
    build_dir.mkdir(parents=True, exist_ok=True)
    with build_environment(build_dir):
        exec(compile(text, path.name, "exec"), names)
    return names


@contextlib.contextmanager
def build_environment(build_dir: Path) -> Iterator[None]:
    """Builds go to `build_dir`; this Python's tools (ninja) are on PATH."""
    tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    wanted = {"TORCH_EXTENSIONS_DIR": str(build_dir.resolve()), "PATH": tools}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


class Resident:
    """What `timing.measure_rounds` asks of a candidate, answered in this process."""

    def __init__(
        self, model: torch.nn.Module, device: torch.device, grad_output: torch.Tensor | None
    ):
        self._model, self._stopwatch = model, clock.Stopwatch(device)
        self._grad_output = grad_output
        self._inputs: list = []
        self.kept: torch.Tensor | None = None

    def send_inputs(self, values: list) -> list:
        """Keep the base inputs; the output's gradient, which comes behind them, is known."""
        self._inputs = values if self._grad_output is None else values[:-1]
        return values

    def request(self, operation: str, doing: str, **arguments) -> dict:
        """Nothing to prepare."""
        return {}

    def time(self, factors: list[float], keep: int = -1) -> list[float]:
        """Milliseconds of one call for each factor; call `keep`'s output is kept."""
        self.kept = None
        part = passes.INFERENCE if self._grad_output is None else passes.BOTH
        call, prepare = passes.timed_pass(
            part, self._model, self._model, self._inputs, self._grad_output, []
        )
        times, self.kept = self._stopwatch.slice(call, prepare, factors, keep)
        return times

    def paused(self):
        """There is no other process."""
        return contextlib.nullcontext()


class Layer:
    """The reference's and the solution's model of one shape with the same weights, and an input."""

    def __init__(self, shape: Shape, solution: ModuleType, options: Options):
        self.options = options
        device, dtype = options.device, options.dtype
        self.batch = batch_for(shape, options)
        torch.manual_seed(SEED)
        made = Reference(reference_of(len(shape.size))).module.Model(*shape.arguments)
        self.reference = made.to(dtype)
        state = self.reference.state_dict()
        self.solution = solution.ModelNew(*shape.arguments).to(device, dtype)
        self.solution.load_state_dict(state, strict=True)
        source = generator(device, SEED)
        x = torch.randn(shape.input_shape(self.batch), generator=source, device=device)
        self.case = Case("normal", [x.to(dtype)], state, SEED)
        self.work = work_of(self.reference, self.case.inputs, dtype)

    def check(self, ours: torch.Tensor, case: Case, where: str) -> dict:
        """The errors of an output; raises Rejected where it is wrong."""
        answer = expected(self.reference, case, self.options.device, False)
        reply = {"output": {"type": "Tensor", "device": str(ours.device), **wire.spec_of(ours)}}
        check.require_form(reply, answer.own)
        options = self.options
        precision = devices.precision_name(options.device, options.dtype, options.tf32)
        return check.require_right(ours, answer, precision, self.work.reduction_length, where)

    def step(self) -> tuple[torch.Tensor, Expected | None, dict]:
        """(the first output, with --backward the right answer of its step, gradients' errors).

        Raises Rejected for a wrong gradient.
        """
        if not self.options.backward:
            return clock.forward_call(self.solution)(*self.case.inputs), None, {}
        answer = expected(self.reference, self.case, self.options.device, True)
        x = self.case.inputs[0].clone().requires_grad_(True)
        output = self.solution(x)
        output.backward(answer.grad_output)
        options, scales = self.options, layer_scales(answer)
        precision = devices.precision_name(options.device, options.dtype, options.tf32)
        errors = {}
        holders = zip([x, *self.solution.parameters()], answer.gradient_names, strict=True)
        for index, (holder, name) in enumerate(holders):
            length = self.work.gradient_length(name)
            errors[name] = require_right_gradient(
                holder.grad, answer, index, precision, length, scales[index], "normal inputs"
            )
            holder.grad = None
        return output.detach(), answer, errors

    def calls(self) -> dict[str, Callable]:
        """The solution and every baseline as calls without arguments."""
        options, case = self.options, self.case
        part = passes.BOTH if options.backward else passes.INFERENCE
        gradient = None
        if options.backward:
            with torch.no_grad():
                gradient = torch.randn_like(self.solution(*case.inputs))
        call, prepare = passes.timed_pass(
            part, self.solution, self.solution, case.inputs, gradient, []
        )
        made = {"solution": lambda: call(*prepare(1.0))}
        for name in offered(options.baselines, self.reference)[0]:
            variant = timing.Baseline(
                name, self.reference, case, options.device, options.dtype, gradient
            )
            made[name] = lambda variant=variant: variant.call(*variant.prepare(1.0))
        return made


def batch_for(shape: Shape, options: Options) -> int:
    """The shape's own batch, or the one asked for; on a CPU cut to about 1 GFLOP a call."""
    if options.batch is not None or options.device.type == "cuda":
        return options.batch or shape.batch
    return max(1, min(shape.batch, int(_CPU_FLOPS // shape.sample_flops)))


def measure(shape: Shape, solution: ModuleType, options: Options) -> dict:
    """Check and time one shape; the entry of the record, without what `kernels_of` adds.

    Outputs of timed calls are checked, too. A wrong answer gives an entry without times.
    """
    layer = Layer(shape, solution, options)
    entry = {
        "name": shape.name,
        "input_shape": list(shape.input_shape(layer.batch)),
        "full_batch": shape.batch,
        "arguments": list(shape.arguments),
        "verdict": "accepted",
        "reasons": [],
    }
    errors, resident = [], None

    def look(factor: float, where: str) -> None:
        inputs = clock.scaled(layer.case.inputs, factor)
        errors.append(layer.check(resident.kept, Case("timed", inputs, layer.case.state, 0), where))

    try:
        first, answer, gradient_errors = layer.step()
        errors.append(layer.check(first, layer.case, "normal inputs"))
        gradient = answer and answer.grad_output
        resident = Resident(layer.solution, options.device, gradient)
        del first, answer
        measurement = timing.measure_rounds(
            resident,
            offered(options.baselines, layer.reference)[0],
            layer.reference,
            layer.case,
            options.device,
            options.dtype,
            gradient,
            look,
            lambda text: None,
        )
    except (Rejected, RuntimeError) as error:
        text = str(error) if isinstance(error, Rejected) else f"runtime_error: {error}"
        entry |= {"verdict": "rejected", "reasons": [text[:1000]]}
        return entry
    finally:
        resident = gradient = None
        clock.release_memory(options.device)
    ms = measurement.summary()
    flops, moved = layer.work.flops, layer.work.bytes
    if options.backward:
        entry["gradient_errors"] = gradient_errors
        flops, moved = 3 * flops, 2 * moved  # both gradients cost what forward does
    return entry | {
        "ms": ms,
        "speedup": measurement.speedup(),
        "fastest": measurement.fastest(),
        "baseline_errors": measurement.baseline_errors,
        "error": {key: max(found[key] for found in errors) for key in errors[0]},
        "gflop": flops / 1e9,
        "gbyte": moved / 1e9,
        "tflops": flops / ms["solution"]["median"] / 1e9,
        "gbps": moved / ms["solution"]["median"] / 1e6,
    }


def kernels_of(shape: Shape, solution: ModuleType, options: Options) -> dict:
    """Which kernels one call of each variant runs, by the profiler, the longest first.

    {"kernel": "hopper" | "portable" | "direct" | "plain" | the kernel's name,
    "kernels": {variant: [[name, microseconds], ...]}}. On a CPU, and where the profiler sees no
    device, there are none. To be called after all timing: a profiler that once ran slows launches
    down.
    """
    if options.device.type != "cuda":
        return {"kernel": "cpu", "kernels": {}}
    found = {}
    for name, call in Layer(shape, solution, options).calls().items():
        if not name.startswith("compile"):
            call()
            found[name] = _profiled(call, options.device)
    clock.release_memory(options.device)
    return {"kernel": _kernel_label(found["solution"]), "kernels": found}


def _profiled(call: Callable, device: torch.device) -> list[list]:
    torch.cuda.synchronize(device)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize(device)
    seen = [event for event in profiler.events() if event.device_type.name == "CUDA"]
    spans = [[short_name(event.name), round(event.time_range.elapsed_us(), 1)] for event in seen]
    return sorted(spans, key=lambda span: -span[1])


def short_name(name: str) -> str:
    """A kernel's name without its return type and its parameters."""
    return re.sub(r"^void |\((?!anonymous).*$", "", name)[:120].strip()


def _kernel_label(spans: list[list]) -> str | None:
    """What our kernels of a call are called, the longest first, or the longest kernel's name."""
    least = _LEAST_SHARE * sum(microseconds for _, microseconds in spans)
    long = [name for name, microseconds in spans if microseconds >= least]
    found = [label for name in long for part, label in _KERNELS.items() if part in name]
    return " + ".join(dict.fromkeys(found)) or (spans[0][0] if spans else None)
