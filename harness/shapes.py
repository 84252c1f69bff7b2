"""`python -m harness.shapes` measures transposed convolutions of other shapes than the problems'.

One solution file, by default that of problem 1/69, is built once and called with the parameters of
every shape. For layers of one or three dimensions (--dimensions) it is generated here, of a
reference in harness/measure/layers/. Each is checked against float64 (also outputs of timed calls)
and timed, interleaved, beside PyTorch: eager, and channels_last (model and input in that layout
beforehand); of one or three dimensions the ordinary convolution with flipped weights, too, where
the stride is one. compile and compile_channels_last can be had with --baselines: for a convolution
alone they are as fast as without compiling, and compiling takes seconds a shape.
"""

import argparse
import datetime
import hashlib
import sys
import tempfile
from pathlib import Path

import torch
from rich.console import Console

from harness import devices
from harness.catalog import ROOT, find_problem
from harness.command import told_command
from harness.errors import UsageError
from harness.files import require_file, require_folder
from harness.judge import wire
from harness.measure.shapes_cases import ALL_SHAPES, select
from harness.measure.shapes_run import (
    BASELINES,
    PROBLEM,
    SEED,
    Options,
    kernels_of,
    load_solution,
    measure,
    reference_of,
)
from harness.names import BASELINES as KNOWN_BASELINES
from harness.names import CONV2D
from harness.report import records, shapes_report
from harness.run.ending import status_of
from harness.run.generating import generate_file
from harness.run.progress import Progress

_EXAMPLES = """examples:
  python -m harness.shapes --record                 all shapes, results/<device>/shapes.json
  python -m harness.shapes --shapes 5x5,7x7 --dtype float16 --build-dir builds
  python -m harness.shapes --backward --record      a training step: forward and backward
  python -m harness.shapes --device cpu --batch 1   a quick look without a GPU
  python -m harness.shapes --dimensions 3 --record  volumes, results/<device>/shapes-3d.json
  python -m harness.shapes --list

exit status: 0 all right, 1 a wrong answer, 2 wrong usage, 3 the environment cannot, 4 an internal
error (TCONV_TRACEBACK=1 shows where)"""
# By dimensions: one has no channels_last.
_USUAL = {1: ("eager", CONV2D), 2: BASELINES, 3: (*BASELINES, CONV2D)}
_DTYPES = ("float32", "float16", "bfloat16", "float64")


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    given = _parser().parse_args(arguments)
    command = told_command(["python", "-m", "harness.shapes"], arguments)
    return status_of("harness.shapes", lambda: _run(given, command))


def _run(given: argparse.Namespace, command: str) -> int:
    if given.list:
        for shape in ALL_SHAPES[given.dimensions]:
            print(shapes_report.listed(shape))
        return 0
    return _measure_all(given, command)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m harness.shapes",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--device", help="cpu, cuda or cuda:<index>; default: CUDA if there is one")
    parser.add_argument("--shapes", metavar="LIST", help="comma-separated names; default: all")
    parser.add_argument("--dimensions", type=int, choices=sorted(ALL_SHAPES), default=2,
                        help="of the layers; default 2")  # fmt: skip
    parser.add_argument("--dtype", choices=_DTYPES, default="float32")
    parser.add_argument("--tf32", choices=("allow", "forbid"), help="default: PyTorch's own")
    parser.add_argument(
        "--backward", action="store_true", help="time forward and backward, check every gradient"
    )
    parser.add_argument("--batch", type=int, metavar="N", help="samples; default: each shape's "
                        "own, on a CPU cut to about 1 GFLOP a call")  # fmt: skip
    parser.add_argument(
        "--baselines",
        metavar="LIST",
        help=f"of {', '.join(KNOWN_BASELINES)}; default {','.join(BASELINES)}; of three "
        f"dimensions {CONV2D}, too, of one it in place of channels_last",
    )
    parser.add_argument("--solution", type=Path, metavar="FILE", help=f"a solution of {PROBLEM}")
    parser.add_argument(
        "--build-dir",
        type=Path,
        metavar="DIR",
        help="keep the build here; default: an empty folder, for a cold build",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record here")
    parser.add_argument(
        "--record",
        type=Path,
        nargs="?",
        const=ROOT / "results",
        metavar="DIR",
        help="write DIR/<device>/shapes.json; default DIR: results",
    )
    parser.add_argument("--list", action="store_true", help="list the shapes and stop")
    return parser


def _options(given: argparse.Namespace) -> Options:
    usual = _USUAL[given.dimensions]
    names = usual if given.baselines is None else tuple(given.baselines.split(","))
    if not set(names) <= set(KNOWN_BASELINES) or len(set(names)) != len(names):
        allowed = ", ".join(KNOWN_BASELINES)
        raise UsageError(f"--baselines {given.baselines!r}: allowed, each once, are {allowed}")
    if given.batch is not None and given.batch < 1:
        raise UsageError(f"--batch {given.batch}: allowed are positive whole numbers")
    device = devices.resolve_device(given.device)
    tf32 = given.tf32 or devices.default_tf32(device)
    dtype = getattr(torch, given.dtype)
    return Options(device, dtype, tf32, names, given.batch, given.backward)


def _measure_all(given: argparse.Namespace, command: str) -> int:
    shapes, options = select(given.shapes, given.dimensions), _options(given)
    if given.record and (given.shapes or given.batch):
        raise UsageError("--record is for all shapes at their own batch; use --json FILE here")
    setting = given.dtype, options.tf32, options.device.type, given.backward
    name = shapes_report.record_name(*setting, given.dimensions)
    targets = {"--json": given.json} if given.json else {}
    if given.record:
        targets["--record"] = given.record / devices.device_slug(options.device) / name
    for option, target in targets.items():
        require_file(target, option, [given.solution])
    if given.build_dir:
        require_folder(given.build_dir, "--build-dir", filled_is_enough=True)
    progress = Progress()
    progress.begin("shapes")
    try:
        with tempfile.TemporaryDirectory(prefix="shapes-") as folder:
            path = given.solution or _solution(given.dimensions, Path(folder))
            progress.step("building")
            build_dir = given.build_dir or Path(folder) / "build"
            cold = not build_dir.is_dir() or not any(build_dir.iterdir())
            solution, seconds = load_solution(path, build_dir, options.device)
            with devices.tf32(options.tf32):
                if options.device.type == "cuda":
                    torch.cuda.set_device(options.device)
                entries = _entries(shapes, solution, options, progress)
            record = _record(path, options, command, entries)
            if given.dimensions != 2:  # the solution is not kept: what it was generated of
                reference = reference_of(given.dimensions)
                record["reference"] = reference.relative_to(ROOT).as_posix()
            record["build_s"] = seconds if cold else None
    finally:
        progress.end()
    for target in targets.values():
        records.write_json(target, record)
        print(f"record: {target}", file=sys.stderr)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    shapes_report.print_entries(console, record, name)
    return int(any(entry["verdict"] != "accepted" for entry in entries))


def _solution(dimensions: int, folder: Path) -> Path:
    """The file that is measured: the committed one of 1/69, or one generated in `folder`."""
    if dimensions == 2:
        return find_problem(PROBLEM).solution
    reference = reference_of(dimensions)
    path = folder / reference.name
    if why := generate_file(reference, path):
        raise UsageError(f"{reference.name} is not generated: {why}")
    return path


def _entries(shapes, solution, options: Options, progress: Progress) -> list[dict]:
    entries = []
    for index, shape in enumerate(shapes, 1):
        progress.step(f"{shape.name} ({index} of {len(shapes)})")
        entries.append(measure(shape, solution, options))
    progress.step("asking which kernels ran")
    for shape, entry in zip(shapes, entries, strict=True):
        if entry["verdict"] == "accepted":
            entry |= kernels_of(shape, solution, options)
    return entries


def _record(path: Path, options: Options, command: str, entries: list[dict]) -> dict:
    """The record: times in milliseconds, `fastest.speedup` over the fastest baseline."""
    absolute = path.resolve()
    known = absolute.is_relative_to(ROOT)
    return {
        "benchmark": "shapes",
        "solution": str(absolute.relative_to(ROOT)) if known else path.name,
        "solution_sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "device": devices.device_slug(options.device),
        "device_name": devices.device_name(options.device),
        "dtype": wire.dtype_name(options.dtype),
        "tf32": options.tf32,
        "backward": options.backward,
        "baselines": list(options.baselines),
        "seed": SEED,
        "versions": devices.environment(options.device),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "command": command,
        "shapes": entries,
    }


if __name__ == "__main__":
    sys.exit(main())
