"""`python -m harness.profile` reads the GPU's own counters while solutions run.

Each solution is built, called twice to warm up, and called once more under Nsight Compute (`ncu`),
which runs every kernel of that call alone, again for each group of counters, with the caches
flushed before each and the clocks as they are. Inputs are the problem's own, forward, without
gradients. What the counters say of time is no benchmark: for that there is run_eval.py.
"""

import argparse
import datetime
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from rich.console import Console

from harness import devices
from harness.catalog import ROOT, Problem, find_problem, list_problems
from harness.command import told_command
from harness.errors import EnvironmentUnfit, UsageError
from harness.files import require_file, require_folder
from harness.measure.profile_counters import METRICS, SECTIONS, read_counters
from harness.measure.shapes_run import load_solution
from harness.report import profile_report, records
from harness.run.ending import status_of
from harness.run.progress import Progress

_EXAMPLES = """examples:
  python -m harness.profile --record                all problems, results/<device>/profile.json
  python -m harness.profile --problems 65,69 --dtypes float16

exit status: 0 all right, 2 wrong usage, 3 the environment cannot, 4 an internal error
(TCONV_TRACEBACK=1 shows where)"""
_DTYPES = ("float32", "float16", "bfloat16")
_TIMEOUT_S = 600


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    given = _parser().parse_args(arguments)
    command = told_command(["python", "-m", "harness.profile"], arguments)
    return status_of("harness.profile", lambda: _profile_all(given, command))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m harness.profile",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--device", help="cuda or cuda:<index>; default: the first GPU")
    parser.add_argument("--problems", metavar="LIST", help="65,2/11 or names; default: all")
    parser.add_argument(
        "--dtypes",
        default="float32,float16",
        metavar="LIST",
        help=f"of {', '.join(_DTYPES)}; default %(default)s",
    )
    parser.add_argument("--build-dir", type=Path, metavar="DIR", help="keep the builds here")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record here")
    parser.add_argument(
        "--record",
        type=Path,
        nargs="?",
        const=ROOT / "results",
        metavar="DIR",
        help="write DIR/<device>/profile.json; default DIR: results",
    )
    return parser


def _profile_all(given: argparse.Namespace, command: str) -> int:
    problems, dtypes = _problems(given.problems), _dtypes(given.dtypes)
    if given.record and given.problems:
        raise UsageError("--record is for all problems; use --json FILE with --problems")
    device = devices.resolve_device(given.device or "cuda")
    if device.type != "cuda":
        raise UsageError(f"--device {given.device!r}: allowed are cuda and cuda:<index>")
    ncu = _find_ncu()
    targets = {"--json": given.json} if given.json else {}
    if given.record:
        folder = given.record / devices.device_slug(device)
        targets["--record"] = folder / profile_report.RECORD
    for option, target in targets.items():
        require_file(target, option)
    if given.build_dir:
        require_folder(given.build_dir, "--build-dir", filled_is_enough=True)
    entries, progress = [], Progress()
    with tempfile.TemporaryDirectory(prefix="profile-") as folder:
        build_dir = given.build_dir or Path(folder)
        for problem in problems:
            progress.begin(problem.id)
            try:
                progress.step("building")
                load_solution(problem.solution, build_dir, device)
                for dtype in dtypes:
                    progress.step(dtype)
                    entries.append(_profile(ncu, problem, dtype, device, build_dir))
            finally:
                progress.end()
    record = {
        "benchmark": "profile",
        "device": devices.device_slug(device),
        "device_name": devices.device_name(device),
        "versions": devices.environment(device) | {"ncu": _version(ncu)},
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
        "command": command,
        "profiles": entries,
    }
    for target in targets.values():
        records.write_json(target, record)
        print(f"record: {target}", file=sys.stderr)
    profile_report.print_record(Console(highlight=False, width=160), record)
    return 0


def _problems(text: str | None) -> list[Problem]:
    return list_problems() if text is None else [find_problem(name) for name in text.split(",")]


def _dtypes(text: str) -> list[str]:
    names = text.split(",")
    if not set(names) <= set(_DTYPES) or len(set(names)) != len(names):
        raise UsageError(f"--dtypes {text!r}: allowed, each once, are {', '.join(_DTYPES)}")
    return names


def _find_ncu() -> str:
    from torch.utils.cpp_extension import CUDA_HOME

    places = [os.environ.get("PATH", "")] + [f"{CUDA_HOME}/bin"] * bool(CUDA_HOME)
    found = shutil.which("ncu", path=os.pathsep.join(places))
    if not found:
        raise EnvironmentUnfit("ncu (Nsight Compute) is neither on PATH nor in the CUDA toolkit")
    return found


def _version(ncu: str) -> str:
    told = subprocess.run([ncu, "--version"], capture_output=True, text=True, check=False).stdout
    return told.strip().splitlines()[-1].removeprefix("Version ") if told.strip() else "unknown"


def _profile(ncu: str, problem: Problem, dtype: str, device: torch.device, build: Path) -> dict:
    """Every kernel of one call with its counters, the longest first.

    Raises EnvironmentUnfit with ncu's own words where it fails: often it may not read counters.
    """
    with tempfile.TemporaryDirectory(prefix="counters-") as folder:
        table = Path(folder) / "counters.csv"
        command = [ncu, "--clock-control", "none", "--profile-from-start", "off"]
        command += ["--csv", "--page", "raw", "--print-units", "base", "--log-file", str(table)]
        for section in SECTIONS:
            command += ["--section", section]
        command += ["--metrics", ",".join(METRICS)]
        command += [sys.executable, "-m", "harness.measure.profile_call"]
        command += [str(problem.reference), str(problem.solution), dtype, str(device), str(build)]
        try:
            done = subprocess.run(
                command, cwd=ROOT, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise EnvironmentUnfit(f"ncu took more than {_TIMEOUT_S} s on {problem.id}") from None
        written = table.read_text() if table.is_file() else ""
    kernels = read_counters(written)
    if done.returncode or not kernels:
        told = "\n".join(part for part in (written, done.stdout, done.stderr) if part)
        raise EnvironmentUnfit(f"ncu failed on {problem.id}, {dtype}: {told.strip()[-1500:]}")
    return {
        "problem": problem.id,
        "solution_sha256": hashlib.sha256(problem.solution.read_bytes()).hexdigest(),
        "dtype": dtype,
        "tf32": devices.default_tf32(device),
        "kernels": kernels,
    }


if __name__ == "__main__":
    sys.exit(main())
