"""`python -m harness.host_time` measures what the host takes for one call of a solution.

Next to nothing is computed: batch 1, the smallest image that the reference takes. Solution and
reference (eager) have the same weights and take turns, in three modes: without gradients; with
gradients enabled, forward only; forward and backward, the gradients of input and parameters
included. On CUDA the time is that until the Python call returns, nothing being queued when it
starts; channels are the problem's own. On a CPU the call computes, too: there models have 8
channels in and out, whose arithmetic takes less than a microsecond.

It is a tool for this project's own solutions: they run in this process.
"""

import argparse
import contextlib
import datetime
import gc
import hashlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from harness import devices
from harness.catalog import ROOT, Problem, find_problem, list_problems
from harness.command import told_command
from harness.errors import HarnessError, UsageError
from harness.judge.reference import Reference
from harness.measure import clock
from harness.measure.shapes_run import executed
from harness.report import records
from harness.run.progress import Progress

_EXAMPLES = """examples:
  python -m harness.host_time --record              all problems, results/<device>/host_time.json
  python -m harness.host_time --problems 65,2/19 --build-dir builds
  python -m harness.host_time --device cpu --threads 1   where others work on the machine, too

exit status: 0 measured, whatever the times are, 2 wrong usage, 3 the environment cannot"""
RECORD = "host_time.json"
MODES = {"no_grad": "no_grad", "grad": "gradients enabled", "backward": "forward + backward"}
# How many times eager's time is allowed in each mode, by level: a layer, a chain of them.
BOUNDS = {"1": (1.5, 1.8, 1.3), "2": (0.5, 0.7, 1.0), "cpu": (1.5, None, None)}
CPU_CHANNELS = 8
_CALLS, _ROUND, _SEED, _LARGEST_IMAGE = 300, 30, 2026, 64


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    given = _parser().parse_args(arguments)
    try:
        return _measure_all(given, told_command(["python", "-m", "harness.host_time"], arguments))
    except HarnessError as error:
        print(f"harness.host_time: error: {error}", file=sys.stderr)
        return error.exit_status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m harness.host_time", description=__doc__, epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument("--problems", metavar="LIST", help="65,2/11 or names; default: all")
    parser.add_argument("--device", help="cpu, cuda or cuda:<index>; default: CUDA if there is one")
    parser.add_argument("--calls", type=int, default=_CALLS, metavar="N", help="timed of each side "
                        "in each mode; default %(default)s")  # fmt: skip
    parser.add_argument("--threads", type=int, metavar="N", help="default: PyTorch's own number")
    parser.add_argument("--build-dir", type=Path, metavar="DIR", help="keep the builds here")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record here")
    parser.add_argument("--record", type=Path, nargs="?", const=ROOT / "results", metavar="DIR",
                        help=f"write DIR/<device>/{RECORD}; default DIR: results")  # fmt: skip
    return parser


def _measure_all(given: argparse.Namespace, command: str) -> int:
    if given.record and given.problems:
        raise UsageError("--record is for all problems; use --json FILE with --problems")
    for name, value, least in (("calls", given.calls, 2), ("threads", given.threads, 1)):
        if value is not None and value < least:
            raise UsageError(f"--{name} {value}: allowed are whole numbers from {least} on")
    device = devices.resolve_device(given.device)
    names = given.problems.split(",") if given.problems else [p.id for p in list_problems()]
    problems = [find_problem(name) for name in names]
    if given.threads:
        torch.set_num_threads(given.threads)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    entries, progress = [], Progress()
    with tempfile.TemporaryDirectory(prefix="host-time-") as folder:
        for problem in problems:
            progress.begin(problem.id)
            try:
                progress.step("building")
                solution = executed(problem.solution, given.build_dir or Path(folder), device)
                progress.step("measuring")
                entries.append(measure(problem, solution, device, given.calls))
            finally:
                progress.end()
    record = {
        "benchmark": "host_time",
        "device": devices.device_slug(device),
        "device_name": devices.device_name(device),
        "dtype": "float32",
        "tf32": devices.default_tf32(device),
        "unit": "us",
        "calls": given.calls,
        "versions": devices.environment(device),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "command": command,
        "problems": entries,
    }
    for target in (given.json, given.record and given.record / record["device"] / RECORD):
        if target:
            records.write_json(target, record)
            print(f"record: {target}", file=sys.stderr)
    print_record(Console(highlight=False, width=None if sys.stdout.isatty() else 140), record)
    return 0


def measure(problem: Problem, solution: dict, device: torch.device, calls: int = _CALLS) -> dict:
    """The entry of one problem: the host's microseconds for a call, by mode and side.

    `solution` holds the solution's ModelNew. Raises UsageError where the reference takes no image
    of at most 64 x 64.
    """
    reference = Reference(problem.reference)
    if device.type == "cpu":
        _cut_channels(reference)
    with devices.tf32(devices.default_tf32(device)), torch.random.fork_rng():
        eager = reference.model(_SEED)
        ours = solution["ModelNew"](*reference.init_inputs)
        ours.load_state_dict(eager.state_dict(), strict=True)
        models = {"solution": ours.to(device), "eager": eager.to(device)}
        x = tiny_input(reference, models["eager"], device)
        bounds = BOUNDS["cpu" if device.type == "cpu" else problem.id[0]]
        modes = {}
        for mode, bound in zip(MODES, bounds, strict=True):
            times = _measured(models, mode, x, device, calls)
            ratio = times["solution"]["median"] / times["eager"]["median"]
            modes[mode] = {**times, "ratio": ratio, "bound": bound}
    return {
        "problem": problem.id,
        "name": problem.name,
        "solution": records.shown_path(problem.solution),
        "solution_sha256": hashlib.sha256(problem.solution.read_bytes()).hexdigest(),
        "arguments": reference.init_inputs,
        "input_shape": list(x.shape),
        "modes": modes,
    }


def _cut_channels(reference: Reference) -> None:
    """A model of few channels, where the reference's file names them as KernelBench's do."""
    module = reference.module
    for name in {"in_channels", "out_channels"} & set(vars(module)):
        setattr(module, name, min(CPU_CHANNELS, getattr(module, name)))
    reference.init_inputs = list(module.get_init_inputs())


def tiny_input(reference: Reference, model: torch.nn.Module, device: torch.device):
    """One sample of the smallest square image that the model takes and answers with anything."""
    shape = reference.inputs(_SEED, torch.device("meta"), 1)[0].shape
    for size in range(1, _LARGEST_IMAGE + 1):
        x = torch.rand(1, shape[1], *[size] * (len(shape) - 2), device=device)
        with contextlib.suppress(RuntimeError, ValueError), torch.no_grad():
            if model(x).numel():
                return x
    told = f"takes no image of up to {_LARGEST_IMAGE} x {_LARGEST_IMAGE}"
    raise UsageError(f"reference {reference.path}: {told}")


def _measured(models: dict, mode: str, x: torch.Tensor, device: torch.device, calls: int) -> dict:
    """Microseconds by side: median and quartiles of `calls` calls, after a round of warm-up."""
    turns = [min(_ROUND, calls - done) for done in range(0, calls, _ROUND)]
    times: dict[str, list[float]] = {name: [] for name in models}
    gc.collect()
    gc.disable()
    try:
        with torch.no_grad() if mode == "no_grad" else torch.enable_grad():
            sides = {name: _side(model, x, mode == "backward") for name, model in models.items()}
            for index, count in enumerate([turns[0], *turns]):
                for name in list(sides) if index % 2 == 0 else list(sides)[::-1]:
                    times[name] += _times(*sides[name], device, count)
    finally:
        gc.enable()
    found = {}
    for name, values in times.items():
        low, median, high = statistics.quantiles(values[turns[0] :], n=4, method="inclusive")
        found[name] = {"median": median, "low": low, "high": high}
    return found


def _side(model: torch.nn.Module, x: torch.Tensor, backward: bool) -> tuple[Callable, Callable]:
    """What is timed of a model, and what clears the gradients before it, off the clock."""
    if not backward:
        return lambda: model(x), lambda: None
    x = x.clone().requires_grad_(True)
    holders = [x, *model.parameters()]
    gradient = torch.ones_like(model(x))  # made beforehand: a loss would add launches of its own

    def call():
        model(x).backward(gradient)

    def clear():
        for holder in holders:
            holder.grad = None

    return call, clear


def _times(call: Callable, clear: Callable, device: torch.device, count: int) -> list[float]:
    times = []
    for _ in range(count):
        clear()
        clock.synchronize(device)
        begin = time.perf_counter_ns()
        result = call()
        times.append((time.perf_counter_ns() - begin) / 1e3)
        del result  # not before the clock has stopped
    return times


def print_record(console: Console, record: dict) -> None:
    """Microseconds of solution and eager, their ratio, and what it may be."""
    what = f"{record['device_name']}, PyTorch {record['versions']['torch']}"
    console.print(f"host time of a call in µs, median of {record['calls']} (quartiles); {what}")
    table = Table("problem", "input", "mode", "solution", "eager", "ratio", "allowed", "")
    for entry in record["problems"]:
        head = entry["problem"], "x".join(map(str, entry["input_shape"]))
        for mode, found in entry["modes"].items():
            ratio, bound = found["ratio"], found["bound"]
            told = "kept" if bound and ratio <= bound else "missed"
            allowed = (f"{bound:g}", told) if bound else ("-", "")
            sides = [
                f"{found[name]['median']:.1f} ({found[name]['low']:.1f}-{found[name]['high']:.1f})"
                for name in ("solution", "eager")
            ]
            table.add_row(*head, MODES[mode], *sides, f"{ratio:.2f}", *allowed)
            head = "", ""
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
