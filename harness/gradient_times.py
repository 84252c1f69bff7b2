"""`python -m harness.gradient_times` measures each gradient of a layer by itself.

Backward alone, its forward run before the clock starts: the gradient of the input, with frozen
parameters, and the gradients of all parameters, of an input that wants none. Each is one product of
the forward's size, which its share of the roofline is of. Solution, eager and eager in
channels_last take turns on the problem's own inputs. A gradient that is far from eager's stops the
run; whether it is right to the last digit, run_eval.py --backward tells.

It is a tool for this project's own solutions: they run in this process.
"""

import argparse
import datetime
import hashlib
import sys
import tempfile
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
from harness.measure import clock, roofline
from harness.measure.layouts import in_channels_last, module_in_channels_last
from harness.measure.own_clock import random_factors
from harness.measure.shapes_run import executed
from harness.measure.timing import Measurement, plan_for
from harness.report import records
from harness.run.progress import Progress

_EXAMPLES = """examples:
  python -m harness.gradient_times --record          all problems, results/<device>/gradients.json
  python -m harness.gradient_times --problems 65,69 --dtype bfloat16 --json gradients.json
  python -m harness.gradient_times --problems 65 --device cpu --batch 1

exit status: 0 measured, whatever the times are, 2 wrong usage, 3 the environment cannot"""
RECORD = "gradients.json"
GRADIENTS = {"input": "of the input", "parameters": "of the parameters"}
FAR = 0.05  # relative root-mean-square difference: another gradient, not another rounding
SIDES = ("solution", "eager", "channels_last")
_DTYPES = ("float32", "float16", "bfloat16")
_SEED, _WARMUP, _MOST_CALLS = 2026, 3, 20


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    given = _parser().parse_args(arguments)
    try:
        return _measure_all(
            given, told_command(["python", "-m", "harness.gradient_times"], arguments)
        )
    except HarnessError as error:
        print(f"harness.gradient_times: error: {error}", file=sys.stderr)
        return error.exit_status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m harness.gradient_times", description=__doc__, epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument("--problems", metavar="LIST", help="65,2/11 or names; default: all")
    parser.add_argument("--device", help="cpu, cuda or cuda:<index>; default: CUDA if there is one")
    parser.add_argument("--dtype", choices=_DTYPES, default="float32", help="default %(default)s")
    parser.add_argument("--batch", type=int, metavar="N", help="samples; default: the problem's")
    parser.add_argument("--build-dir", type=Path, metavar="DIR", help="keep the builds here")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record here")
    parser.add_argument("--record", type=Path, nargs="?", const=ROOT / "results", metavar="DIR",
                        help=f"write DIR/<device>/{RECORD}; default DIR: results")  # fmt: skip
    return parser


def _measure_all(given: argparse.Namespace, command: str) -> int:
    if given.record and (given.problems or given.batch or given.dtype != "float32"):
        raise UsageError("--record is for all problems at full size in float32; else --json FILE")
    if given.batch is not None and given.batch < 1:
        raise UsageError(f"--batch {given.batch}: allowed are whole numbers from 1 on")
    device = devices.resolve_device(given.device)
    names = given.problems.split(",") if given.problems else [p.id for p in list_problems()]
    problems = [find_problem(name) for name in names]
    if device.type == "cuda":
        torch.cuda.set_device(device)
    entries, progress = [], Progress()
    with tempfile.TemporaryDirectory(prefix="gradient-times-") as folder:
        for problem in problems:
            progress.begin(problem.id)
            try:
                progress.step("building")
                solution = executed(problem.solution, given.build_dir or Path(folder), device)
                progress.step("measuring")
                dtype = getattr(torch, given.dtype)
                entries.append(measure(problem, solution, device, dtype, given.batch))
            finally:
                progress.end()
    record = {
        "benchmark": "gradients",
        "device": devices.device_slug(device),
        "device_name": devices.device_name(device),
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


def measure(
    problem: Problem,
    solution: dict,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    batch: int | None = None,
) -> dict:
    """The entry of one problem: milliseconds and share of the roofline, by gradient.

    `solution` holds the solution's ModelNew; `batch` samples in place of the problem's own. Raises
    HarnessError where a gradient is not eager's.
    """
    reference, tf32 = Reference(problem.reference), devices.default_tf32(device)
    precision = devices.precision_name(device, dtype, tf32)
    with devices.tf32(tf32), torch.random.fork_rng():
        eager = reference.model(_SEED)
        inputs = [value.to(dtype) for value in reference.inputs(_SEED, device, batch)]
        work = roofline.work_of(eager, inputs, dtype)
        found = {}
        for name in GRADIENTS:
            sides = _sides(reference, eager.state_dict(), solution, inputs, dtype, name)
            found[name] = _measured(sides, work, precision, device, f"{problem.id}: {name}")
    return {
        "problem": problem.id,
        "name": problem.name,
        "solution": records.shown_path(problem.solution),
        "solution_sha256": hashlib.sha256(problem.solution.read_bytes()).hexdigest(),
        "dtype": str(dtype).removeprefix("torch."),
        "tf32": tf32,
        "backward": True,
        "kernel": "auto",
        "input_shape": list(inputs[0].shape),
        "gradients": found,
    }


def _sides(reference, state: dict, solution: dict, inputs: list, dtype, name: str) -> dict:
    """By side: (call, prepare) for a stopwatch. A call gives the gradients in a list."""
    made, gradient = {}, None
    for side in SIDES:
        factory = solution["ModelNew"] if side == "solution" else reference.module.Model
        model = factory(*reference.init_inputs)
        model.load_state_dict(state, strict=True)
        model.to(inputs[0].device, dtype).requires_grad_(name == "parameters")
        laid_out = side == "channels_last"
        if laid_out:
            model = module_in_channels_last(model)
        base = [in_channels_last(value) if laid_out else value for value in inputs]
        if gradient is None:
            with torch.no_grad():
                gradient = torch.randn_like(model(*base))
        laid = in_channels_last(gradient) if laid_out else gradient
        made[side] = _timed(model, base, laid, name)
    return made


def _timed(model: torch.nn.Module, base: list, gradient, name: str) -> tuple[Callable, Callable]:
    def prepare(scale: float) -> list:
        arguments = [(value * scale).requires_grad_(name == "input") for value in base]
        wanted = arguments if name == "input" else list(model.parameters())
        return [model(*arguments), wanted]

    def call(output: torch.Tensor, wanted: list) -> list:
        return list(torch.autograd.grad(output, wanted, gradient))

    return call, prepare


def _measured(sides: dict, work, precision: str, device: torch.device, told: str) -> dict:
    """Times of all sides in turns, the solution's rates, and how far it is from eager."""
    plan, stopwatch, counts = plan_for(device), clock.Stopwatch(device), {}
    first, result = {}, Measurement()
    for side, (call, prepare) in sides.items():
        times, first[side] = stopwatch.slice(call, prepare, [1.0] * _WARMUP, 0)
        counts[side] = max(2, min(_MOST_CALLS, round(plan.slice_ms / min(times))))
        result.rounds[side] = []
    difference = _difference(first["solution"], first["eager"])
    first.clear()
    if not difference <= FAR:
        raise HarnessError(
            f"{told}: the solution's gradient is {difference:.1e} from eager's, allowed are {FAR}"
        )
    for index in range(plan.rounds):
        for side in list(sides) if index % 2 == 0 else list(sides)[::-1]:
            times, _ = stopwatch.slice(*sides[side], random_factors(counts[side]))
            result.rounds[side].append(times)
    ours = result.summary()["solution"]["median"]
    rates, _ = roofline.measured_roofline(work, device, precision, ours)
    return {
        "ms": result.summary(),
        "fastest": result.fastest(),
        "roofline": rates,
        "from_eager": difference,
    }


def _difference(ours: list[torch.Tensor], eager: list[torch.Tensor]) -> float:
    """Relative root-mean-square difference of all gradients together.

    Not of each: that of a bias which a batch norm takes away again is rounding alone.
    """
    pairs = [(a.float(), b.float()) for a, b in zip(ours, eager, strict=True)]
    apart = sum(float((a - b).norm()) ** 2 for a, b in pairs)
    return (apart / max(sum(float(b.norm()) ** 2 for _, b in pairs), 1e-60)) ** 0.5


def print_record(console: Console, record: dict) -> None:
    """Milliseconds of all sides, and the solution's share of the roofline."""
    what = f"{record['device_name']}, PyTorch {record['versions']['torch']}"
    console.print(f"a gradient by itself, ms, median (inter-quartile range); {what}")
    table = Table("problem", "input", "gradient", *SIDES, "ratio", "TFLOP/s", "of roofline")
    for entry in record["problems"]:
        head = entry["problem"], "x".join(map(str, entry["input_shape"]))
        for name, found in entry["gradients"].items():
            times = [f"{found['ms'][s]['median']:.3g} ({found['ms'][s]['iqr']:.2g})" for s in SIDES]
            rates, ratio = found["roofline"], f"{found['fastest']['speedup']:.2f}x"
            last = f"{rates['tflops']:.3g}", f"{100 * rates['share']:.0f}%"
            table.add_row(*head, GRADIENTS[name], *times, ratio, *last)
            head = "", ""
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
