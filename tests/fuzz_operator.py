"""Random layers through the operator of a solution of problem 69, each against float64:

    python -m tests.fuzz_operator --seed S --count N [--device cuda|cpu] [--kernel auto|plain|...]
        [--sizes full|medium|small] [--first I] [--minutes M] [--solution PATH] [--json PATH]

Outputs, and for a third of the layers the gradients of x, weight and bias, must be within the
element-wise bound of any order of summation (tests/layer_errors.py); PyTorch's own errors stand
beside them. One line per failure says the layer and the (seed, index, sizes) that makes it again:
`--seed S --first I --count 1`. Exit status 1 where a layer failed.

An access that CUDA calls illegal leaves its process without a device. The layers that were under
way are then tried again in processes of their own, one waited for before the next, and the rest
goes on. Under compute-sanitizer, which names such an access at once:

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --error-exitcode 1 \\
        --kernel-regex kns=tconv python -m tests.fuzz_operator --seed S --count 300 \\
        --device cuda --no-pytorch

Without PyTorch's caching allocator accesses beyond a tensor's end are seen; without PyTorch's
answers it takes minutes.
"""

import argparse
import dataclasses
import json
import math
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from tests.layer_errors import Errors, errors_of
from tests.random_layers import SIZES, random_layer
from tests.solution_tools import ROOT, environment, load_text

KERNELS = ("auto", "plain", "direct", "portable", "hopper", "avx2")
_UNDER_WAY = 32  # layers whose errors are asked for at once: a question waits for the GPU


@dataclasses.dataclass
class Summary:
    """What a run found. Errors are the largest in units of what is allowed for an output."""

    layers: int = 0
    refused: int = 0  # by a forced kernel
    failures: list = dataclasses.field(default_factory=list)
    error: float = 0.0
    pytorch_error: float = 0.0

    def add(self, other: "Summary") -> None:
        self.layers += other.layers
        self.refused += other.refused
        self.failures += other.failures
        self.error = max(self.error, other.error)
        self.pytorch_error = max(self.pytorch_error, other.pytorch_error)

    def fail(self, layer, what: str) -> None:
        where = f"(seed {layer.seed}, index {layer.index}, {layer.sizes})"
        self.failures.append(
            {"seed": layer.seed, "index": layer.index, "layer": str(layer), "what": what}
        )
        print(f"FAILED {where} {layer}: {what}", flush=True)

    def take(self, errors: Errors) -> None:
        for what in errors.failures():
            self.fail(errors.layer, what)
        ours, theirs = float(errors.ours[0]), float(errors.torch[0])
        self.error = max(self.error, ours if math.isfinite(ours) else 0.0)
        self.pytorch_error = max(self.pytorch_error, theirs if math.isfinite(theirs) else 0.0)

    def __str__(self) -> str:
        refused = f" ({self.refused} refused by the forced kernel)" * bool(self.refused)
        return (
            f"{self.layers} layers{refused}, {len(self.failures)} failures, largest error "
            f"{self.error:.3f} / PyTorch's {self.pytorch_error:.3f} of what is allowed"
        )


class LostDevice(Exception):
    """The process has no device any more; `first` is the first layer whose errors are not known."""

    def __init__(self, first: int, last: int, message: str):
        super().__init__(message)
        self.first, self.last = first, last


def run(operator, options, summary: Summary, deadline: float = math.inf) -> None:
    """Adds layers options.first to options.first + options.count - 1 to `summary`.

    Raises LostDevice where a CUDA error leaves nothing to go on with.
    """
    cuda = options.device == "cuda"
    at_once = 1 if options.wait or not cuda else _UNDER_WAY
    begin = options.first
    end = begin + options.count
    while begin < end and time.monotonic() < deadline:
        stop = min(begin + at_once, end)
        part = Summary()
        index = begin
        try:
            found = []
            for index in range(begin, stop):
                layer = random_layer(options.seed, index, options.sizes)
                if not options.gradients:
                    layer = dataclasses.replace(layer, gradients=False)
                part.layers += 1
                errors = _errors(operator, layer, options, part)
                found += [errors] * (errors is not None)
            for errors in found:
                part.take(errors)
        except RuntimeError as error:
            if not cuda or "CUDA error" not in str(error):
                raise
            raise LostDevice(begin, index, str(error).splitlines()[0]) from error
        summary.add(part)
        begin = stop


def _errors(operator, layer, options, summary: Summary) -> Errors | None:
    try:
        return errors_of(
            operator,
            layer,
            options.device,
            rounds=options.device == "cuda",
            compare=options.pytorch,
        )
    except torch.OutOfMemoryError as error:
        summary.fail(layer, f"out of memory: {str(error).splitlines()[0]}")
    except (RuntimeError, AssertionError) as error:
        if "CUDA error" in str(error):
            raise
        if "forced by TCONV_KERNEL" in str(error) and options.kernel not in ("auto", "plain"):
            summary.refused += 1
        else:
            summary.fail(layer, f"{type(error).__name__}: {str(error).splitlines()[0]}")
    return None


def fuzz(options) -> Summary:
    """The whole run, in other processes where this one loses its device."""
    summary = Summary()
    text = options.solution.read_text()
    with environment(TCONV_KERNEL=options.kernel):
        operator = load_text(text, "fuzzed")["_operator"]  # built, perhaps: not a fuzzing minute
        minutes = math.inf if options.minutes is None else options.minutes
        deadline = time.monotonic() + 60 * minutes
        try:
            run(operator, options, summary, deadline)
        except LostDevice as lost:
            layer = random_layer(options.seed, lost.first, options.sizes)
            if options.wait:
                summary.layers += 1
                summary.fail(layer, str(lost))
                rest = [(lost.first + 1, options.first + options.count, True)]
            else:
                print(f"layers {lost.first} to {lost.last}: {lost}; tried one by one", flush=True)
                middle = lost.last + 1
                rest = [
                    (lost.first, middle, True),
                    (middle, options.first + options.count, False),
                ]
            for first, end, wait in rest:
                left = (deadline - time.monotonic()) / 60
                if first < end and left > 0:
                    summary.add(_apart(options, first, end - first, wait, left))
    return summary


def _apart(options, first: int, count: int, wait: bool, minutes: float) -> Summary:
    """The same in another process."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "summary.json"
        command = [sys.executable, "-m", "tests.fuzz_operator", "--seed", str(options.seed)]
        command += ["--first", str(first), "--count", str(count), "--device", options.device]
        command += ["--kernel", options.kernel, "--sizes", options.sizes, "--json", str(path)]
        command += ["--solution", str(options.solution.resolve())]
        command += ["--wait"] * wait
        command += ["--no-pytorch"] * (not options.pytorch)
        command += ["--no-gradients"] * (not options.gradients)
        command += ["--minutes", str(minutes)] * math.isfinite(minutes)
        done = subprocess.run(command, cwd=ROOT)
        if not path.exists():
            summary = Summary()
            summary.fail(
                random_layer(options.seed, first, options.sizes),
                f"a process of layers {first} to {first + count - 1} ended with {done.returncode}",
            )
            return summary
        said = json.loads(path.read_text())
    fields = {field.name for field in dataclasses.fields(Summary)}
    return Summary(**{name: value for name, value in said.items() if name in fields})


def _options(arguments: list[str]):
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz_operator")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="index of the first layer")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--kernel", choices=KERNELS, default="auto")
    parser.add_argument("--sizes", choices=tuple(SIZES), default="full")
    parser.add_argument("--minutes", type=float, help="stop after so many, whatever the count")
    parser.add_argument("--json", type=Path, help="where to write the summary")
    parser.add_argument(
        "--solution", type=Path, default=next((ROOT / "solutions" / "level1").glob("69_*.py"))
    )
    parser.add_argument("--wait", action="store_true", help="for the device after every layer")
    parser.add_argument("--no-pytorch", dest="pytorch", action="store_false")
    parser.add_argument("--no-gradients", dest="gradients", action="store_false")
    options = parser.parse_args(arguments)
    if options.count < 1 or options.first < 0 or options.seed < 0:
        parser.error("--count must be at least 1, --seed and --first at least 0")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: this machine has no CUDA device; allowed here: cpu")
    return options


def main(arguments: list[str]) -> int:
    options = _options(arguments)
    begin = time.monotonic()
    summary = fuzz(options)
    said = dataclasses.asdict(summary) | {
        name: getattr(options, name) for name in ("seed", "first", "device", "kernel", "sizes")
    }
    said["seconds"] = round(time.monotonic() - begin, 1)
    said["torch"] = torch.__version__
    if options.device == "cuda":
        said["gpu"] = torch.cuda.get_device_name()
    if options.json is not None:
        options.json.write_text(json.dumps(said, indent=1) + "\n")
    print(summary, flush=True)
    return 1 if summary.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
