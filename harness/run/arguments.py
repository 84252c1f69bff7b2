"""The options of run_eval.py."""

import argparse
from pathlib import Path

from harness.catalog import ROOT
from harness.names import BASELINES, DTYPES, SHORT_DTYPES, SORTS

_EXAMPLES = """examples:
  python run_eval.py --problem 65                 check and time the solution of problem 1/65
  python run_eval.py --all --record               all problems, records to results/<device>/
  python run_eval.py --problem 2/19 --device cuda --dtype bfloat16 --backward
  python run_eval.py --problem 65 --solution my_kernel.py --json -
  python run_eval.py --reference my_problem.py    generate a solution for it, then evaluate that
  python run_eval.py --compare results/cpu old.json --fail-below 0.95
  python run_eval.py --suite solutions --output my_records --resume
  python run_eval.py --suite runs/my_run --reference KernelBench   a KernelBench run folder
  python run_eval.py --family KernelBench/KernelBench   its references with a transposed convolution
  RAY_ADDRESS=head:6379 python run_eval.py --suite runs/my_run --ray   over a Ray cluster
  python run_eval.py --export-kernelbench results/nvidia-h200 --output kernelbench_runs

exit status: 0 accepted (all of them), 1 rejected (one at least) or slower than --fail-below allows,
2 wrong usage, a missing file or a place that cannot be written, 3 the environment cannot, 4 an
internal error of the harness, told in one line (TCONV_TRACEBACK=1 shows where)"""


def make_parser() -> argparse.ArgumentParser:
    """The parser; its error exit is status 2."""
    parser = argparse.ArgumentParser(
        prog="run_eval.py",
        description="Check a solution of a KernelBench-style problem against float64 and time it.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    what = parser.add_argument_group("what to evaluate")
    what.add_argument("--problem", metavar="N", help="65, 1/65, level1/65, or part of a name")
    what.add_argument("--all", action="store_true", help="every problem of the catalogue")
    what.add_argument("--list", action="store_true", help="list the problems and stop")
    what.add_argument("--solution", type=Path, metavar="FILE", help="file with ModelNew")
    what.add_argument("--reference", type=Path, metavar="FILE", help="file with Model")
    what.add_argument(
        "--suite",
        type=Path,
        metavar="DIR",
        help="every candidate in a folder, on all GPUs; its reference is found by level and "
        "number or by name in the catalogue, or is, or lies in, --reference",
    )
    what.add_argument(
        "--family",
        type=Path,
        metavar="DIR",
        help="every reference below a folder, as KernelBench's, that has a transposed convolution: "
        "generate, evaluate and record it, on all GPUs; records of the same solution, reference "
        "and settings are kept",
    )
    what.add_argument(
        "--export-kernelbench",
        type=Path,
        nargs="+",
        metavar="RECORD",
        help="write records as KernelBench's files to --output; --solution FILE or DIR: more "
        "places to look for the kernels",
    )
    what.add_argument(
        "--compare",
        type=Path,
        nargs="+",
        metavar="RECORD",
        help="records or folders to compare, also KernelBench's eval_results.json and "
        "baseline_time_*.json, and the folders that hold them",
    )
    what.add_argument(
        "--show", type=Path, nargs="+", metavar="RECORD", help="print records or folders of them"
    )
    how = parser.add_argument_group("how")
    how.add_argument("--device", help="cpu, cuda or cuda:<index>; default: CUDA if there is one")
    how.add_argument(
        "--dtype",
        choices=DTYPES,
        type=lambda text: SHORT_DTYPES.get(text, text),
        default="float32",
        help="or fp16, bf16, fp32, fp64; default %(default)s",
    )
    how.add_argument(
        "--tf32", choices=("allow", "forbid"), help="default: allow on CUDA, as PyTorch does"
    )
    how.add_argument("--batch", type=_positive, help="samples; default: the problem's own, on a "
                     "CPU cut so that an eager forward takes about 0.3 s")  # fmt: skip
    how.add_argument(
        "--backward", action="store_true", help="check gradients, time forward, backward and both"
    )
    how.add_argument(
        "--eval",
        action="store_true",
        help="the models in eval mode; without it they are in training mode, as KernelBench has "
        "them. Where it matters, one more case is checked in the other mode",
    )
    how.add_argument(
        "--baselines",
        default=",".join(BASELINES),
        metavar="LIST",
        help="comma-separated, of %(default)s; or none",
    )
    how.add_argument(
        "--one-size",
        action="store_true",
        help="do not also try inputs of another size, which a solution may refuse to take",
    )
    how.add_argument(
        "--kernelbench",
        action="store_true",
        help="reject what KernelBench would not take: other values from the same seed, and errors "
        "of its static checker",
    )
    how.add_argument("--check-only", action="store_true", help="no timing")
    how.add_argument(
        "--timeout",
        type=_seconds,
        default=600.0,
        metavar="S",
        help="seconds the solution may use in all; default %(default)g",
    )
    how.add_argument(
        "--build-dir",
        type=Path,
        metavar="DIR",
        help="keep builds here; default: an empty folder, for a cold build",
    )
    how.add_argument("--seed", type=int, default=2026, help="default %(default)s")
    many = parser.add_argument_group("with --suite and --family")
    many.add_argument(
        "--again", action="store_true", help="with --family: evaluate anew what has a record"
    )
    many.add_argument(
        "--resume",
        action="store_true",
        help="with --suite: keep records of the same candidate, reference and settings (compared "
        "by SHA-256)",
    )
    many.add_argument(
        "--build-jobs",
        type=_whole,
        metavar="N",
        help="builds at a time on the CPUs, ahead of the GPUs; default: one for every 8 "
        "cores; 0: none ahead; on the CPU always none, because they would disturb the times",
    )
    many.add_argument(
        "--ray",
        action="store_true",
        help="with --suite: on the Ray cluster of RAY_ADDRESS, or one started on this machine: a "
        "task for each candidate, with one GPU or on the CPU a whole node",
    )
    side = parser.add_argument_group("with --compare")
    side.add_argument(
        "--sort",
        choices=SORTS,
        help="rows by the last record: smallest ratio, longest time, smallest speedup first; "
        "default: problem",
    )
    side.add_argument(
        "--fail-below",
        type=_ratio,
        metavar="RATIO",
        help="exit status 1 unless all are at least so many times as fast as in the first record",
    )
    out = parser.add_argument_group("output")
    out.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="folder of the records of --suite (default: results/suites/NAME) or of --family "
        "(default: results/<device>/family), or of the export",
    )
    out.add_argument(
        "--keep",
        type=Path,
        metavar="FILE",
        help="write the solution here that is generated for --reference, or for --family those of "
        "all, into a folder",
    )
    out.add_argument("--json", metavar="FILE", help="write the record here; - for standard output")
    out.add_argument(
        "--record",
        type=Path,
        nargs="?",
        const=ROOT / "results",
        metavar="DIR",
        help="write DIR/<device>/<level>_<number>.json; default DIR: results; settings out of the "
        "ordinary are added to <device>, as in nvidia-h200-float16 or nvidia-h200-portable",
    )
    return parser


def _positive(text: str) -> int:
    value = int(text) if text.isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return value


def _whole(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, 0 or more")
    return int(text)


def _ratio(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive ratio")
    return value


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return value
