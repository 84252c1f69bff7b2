"""The command line of run_eval.py."""

import argparse
import contextlib
import os
import signal
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console

from harness import catalog, devices
from harness.catalog import ROOT, Problem
from harness.command import told_command
from harness.errors import EnvironmentUnfit, UsageError
from harness.files import require_file, require_folder
from harness.names import BASELINES, KERNELS
from harness.report import kernelbench_export, records, tables
from harness.run import compare_cli, listing, ray_cluster
from harness.run.arguments import make_parser
from harness.run.ending import reported, status_of
from harness.run.evaluate import Evaluation
from harness.run.family import run_family
from harness.run.generating import generate_file
from harness.run.outcome import Options
from harness.run.progress import Progress
from harness.run.suite_files import find_items
from harness.run.suite_run import run_suite
from harness.run.time_left import TimeLeft

ACCEPTED, REJECTED = 0, 1


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        given = make_parser().parse_args(arguments)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else UsageError.exit_status
    with _ended_by_sigterm():
        return status_of("run_eval.py", lambda: _clean_run(given, arguments))


@contextlib.contextmanager
def _ended_by_sigterm():
    """The solution's process and its files go, too, when the harness is told to stop meanwhile."""
    if threading.current_thread() is not threading.main_thread():
        yield  # where no handler can be set
        return
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def _clean_run(given: argparse.Namespace, arguments: list[str]) -> int:
    with _clean_stdout(given.json == "-") as (stdout, console):
        return _run(given, arguments, stdout, console)


@contextlib.contextmanager
def _clean_stdout(json_only: bool):
    """Yield (stream for the JSON, console for tables).

    With --json - everything else that would go to standard output, also from compilers and
    libraries, goes to standard error.
    """
    if not json_only:
        yield sys.stdout, _console(sys.stdout)
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with os.fdopen(os.dup(kept), "w") as stream:
            yield stream, _console(sys.stderr)
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _console(stream) -> Console:
    """A console whose tables are whole, too, where no terminal tells its width."""
    return _WorkingOn(file=stream, highlight=False, width=None if stream.isatty() else 110)


class _WorkingOn(Console):
    """Without a reader (`| head`) it falls silent, and records are still written."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.file.fileno())
        os.close(nowhere)


def _run(given: argparse.Namespace, arguments: list[str], stdout, console: Console) -> int:
    _require_one_task(given)
    _require_places(given)
    if given.list:
        return _list(given, stdout, console)
    if given.compare or given.show:
        run = compare_cli.run_compare if given.compare else compare_cli.run_show
        value, status = run(given, console)
        _write(given, value, stdout)
        return status
    if given.export_kernelbench:
        return _export(given, stdout, console)
    command = told_command(["python", "run_eval.py"], arguments)
    if given.suite or given.family:
        value, status = _many(given, command, console)
        _write(given, value, stdout)
        return status
    options = _options(given, devices.resolve_device(given.device))
    with tempfile.TemporaryDirectory(prefix="generated-") as folder:
        problems = _problems(given, Path(folder))
        for problem in problems if given.record else ():
            require_file(_record_path(given, problem, options), "--record")
        done, worst, left = [], ACCEPTED, TimeLeft(len(problems))
        for problem in problems:
            try:
                _require_solution(problem, given.solution)
                done.append(_evaluate(problem, options, command, given, console, left))
            except EnvironmentUnfit:
                raise
            except Exception as error:  # one problem's, which is no reason to leave the others
                if not given.all:
                    raise
                worst = max(worst, reported(f"run_eval.py: {problem.id}", error))
            finally:
                left.finish(problem.id)
    if len(done) > 1:
        tables.print_summary(console, done)
    _write(given, done if given.all else done[0], stdout)
    rejected = any(record["verdict"] != "accepted" for record in done)
    return max(worst, REJECTED if rejected else ACCEPTED)


def _many(given: argparse.Namespace, command: str, console: Console) -> tuple[dict, int]:
    if given.family:
        options = _options(given, devices.resolve_device(given.device))
        return run_family(given, options, command, console)
    if not given.ray:
        options = _options(given, devices.resolve_device(given.device))
        return run_suite(given, options, command, console)
    find_items(given.suite, given.reference)  # what is wrong here is said before a cluster starts
    with ray_cluster.connected(given.device) as cluster:
        return run_suite(given, _options(given, cluster.device), command, console, cluster)


def _require_one_task(given: argparse.Namespace) -> None:
    named = {
        "--problem": given.problem,
        "--all": given.all,
        "--list": given.list,
        "--compare": given.compare,
        "--show": given.show,
        "--suite": given.suite,
        "--family": given.family,
        "--export-kernelbench": given.export_kernelbench,
        "--reference": given.reference if not given.suite else None,
    }
    tasks = [name for name, value in named.items() if value]
    if not tasks:
        what = " with --solution" if given.solution else ""
        raise UsageError(f"say what to evaluate{what}: one of {', '.join(named)} is needed")
    if len(tasks) > 1:
        raise UsageError(f"{' and '.join(tasks)} exclude each other")
    if given.solution and not (given.problem or given.reference or given.export_kernelbench):
        raise UsageError(f"--solution does not go with {tasks[0]}")
    if given.keep and not given.family:
        if given.solution or given.suite or not given.reference:
            told = (
                "--keep goes with --reference, where a solution is generated for it, and --family"
            )
            raise UsageError(told)
    if given.record and not (given.problem or given.all):
        raise UsageError("--record goes with --problem and --all; use --json FILE here")
    compare_cli.require_options(given)
    _require_suite_options(given)


def _require_places(given: argparse.Namespace) -> None:
    """What will be written can be, which is better known before hours of work than after."""
    if given.json and given.json != "-":
        inputs = [given.solution, given.reference]
        inputs += [*(given.compare or ()), *(given.show or ()), *(given.export_kernelbench or ())]
        require_file(Path(given.json), "--json", inputs)
    if given.output:
        require_folder(given.output, "--output")
    if given.keep and given.family:
        require_folder(given.keep, "--keep")
    elif given.keep:
        require_file(given.keep, "--keep", [given.reference])
    if given.build_dir:
        require_folder(given.build_dir, "--build-dir", filled_is_enough=True)


def _require_suite_options(given: argparse.Namespace) -> None:
    many = given.suite or given.family
    if many and given.build_dir:
        raise UsageError("--build-dir does not go with many candidates: each has its own")
    if not given.suite and (given.resume or given.ray):
        raise UsageError("--resume and --ray go with --suite")
    if not many and given.build_jobs is not None:
        raise UsageError("--build-jobs goes with --suite and --family")
    if not given.family and given.again:
        raise UsageError("--again goes with --family")
    if given.ray and given.build_jobs:
        raise UsageError("--build-jobs does not go with --ray: each task builds for itself")
    if given.output and not (many or given.export_kernelbench):
        raise UsageError("--output goes with --suite, --family and --export-kernelbench")
    if given.export_kernelbench and not given.output:
        raise UsageError("--export-kernelbench needs --output DIR")


def _options(given: argparse.Namespace, device: torch.device) -> Options:
    names = [] if given.baselines in ("none", "") else given.baselines.split(",")
    unknown = [name for name in names if name not in BASELINES]
    if unknown or len(set(names)) != len(names):
        allowed = ", ".join(BASELINES)
        raise UsageError(f"--baselines {given.baselines!r}: allowed, each once, are {allowed}")
    return Options(
        device=device,
        dtype=getattr(torch, given.dtype),
        tf32=given.tf32 or devices.default_tf32(device),
        batch=given.batch,
        backward=given.backward,
        eval=given.eval,
        kernel=_forced_kernel(),
        baselines=tuple(names),
        timeout=given.timeout,
        check_only=given.check_only,
        build_dir=given.build_dir,
        one_size=given.one_size,
        kernelbench=given.kernelbench,
        seed=given.seed,
    )


def _forced_kernel() -> str:
    """What TCONV_KERNEL asks of solutions; it becomes part of a folder's name."""
    name = os.environ.get("TCONV_KERNEL", "auto")
    if name not in KERNELS:
        raise EnvironmentUnfit(
            f"TCONV_KERNEL is {name!r}: it must be one of {', '.join(KERNELS)}, or unset"
        )
    return name


def _problems(given: argparse.Namespace, folder: Path) -> list[Problem]:
    """What to evaluate, all files there; a missing solution is generated into `folder`."""
    if given.reference:
        if not given.reference.is_file():
            folder = ": a folder goes with --suite" * given.reference.is_dir()
            raise UsageError(f"--reference {given.reference}{folder or ': no such file'}")
        solution = given.solution or _generate(given.reference, folder, given.keep)
        found = [catalog.problem_of_files(given.reference, solution)]
    elif given.all:
        found = catalog.list_problems()
    else:
        found = [catalog.find_problem(given.problem)]
        if given.solution:
            found = [replace(found[0], solution=given.solution)]
    if not given.all:  # of all, each in its turn
        _require_solution(found[0], given.solution)
    return found


def _require_solution(problem: Problem, by_hand: Path | None) -> None:
    """There is a file, or the command is told that makes the catalogue's."""
    if problem.solution.is_file():
        return
    if by_hand:
        raise UsageError(f"no such solution file: {by_hand}")
    reference, solution = (os.path.relpath(p, ROOT) for p in (problem.reference, problem.solution))
    made = f"python -m generator {reference} -o {solution}"
    raise UsageError(f"no such solution file: {solution}; this makes it: {made}")


def _generate(reference: Path, folder: Path, keep: Path | None) -> Path:
    solution = keep.resolve() if keep else folder / reference.name
    if why := generate_file(reference, solution, built=True):
        raise UsageError(f"--reference {reference}: no solution could be generated: {why}")
    return solution


def _evaluate(problem, options: Options, command: str, given, console: Console, left) -> dict:
    progress = Progress()
    progress.begin(problem.id)
    if given.all:
        progress.step(left.told())
    left.begin(problem.id)
    try:
        outcome = Evaluation(problem, options, progress).run()
    finally:
        progress.end()
    record = records.make_record(problem, options, outcome, command)
    if given.record:
        path = _record_path(given, problem, options)
        records.write_json(path, record)
        print(f"record: {path}", file=sys.stderr)
    tables.print_record(console, record)
    return record


def _record_path(given: argparse.Namespace, problem: Problem, options: Options) -> Path:
    return given.record / records.folder_of(options) / problem.record_name


def _write(given: argparse.Namespace, value, stdout) -> None:
    if given.json == "-":
        stdout.write(records.to_json(value))
        stdout.flush()
    elif given.json:
        records.write_json(Path(given.json), value)


def _list(given: argparse.Namespace, stdout, console: Console) -> int:
    for line in listing.lines() if given.json != "-" else ():
        console.print(line, soft_wrap=True)
    _write(given, listing.rows(), stdout)
    return 0


def _export(given: argparse.Namespace, stdout, console: Console) -> int:
    found = [record for path in given.export_kernelbench for record in records.read_records(path)]
    places = [given.solution] if given.solution else []
    if missing := [str(place) for place in places if not place.exists()]:
        raise UsageError(f"--solution {missing[0]}: no such file or folder")
    result = kernelbench_export.export(found, given.output, places)
    for path in result["written"]:
        console.print(path, markup=False, soft_wrap=True)
    for told in result["left_out"]:
        console.print(f"left out: {told}", markup=False, soft_wrap=True)
    _write(given, result, stdout)
    return 0
