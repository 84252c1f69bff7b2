"""--family: every reference of a folder that has a transposed convolution, generated, evaluated and
recorded.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from harness import catalog
from harness.catalog import ROOT, Problem
from harness.errors import UsageError
from harness.files import require_folder
from harness.report import records
from harness.run import generating
from harness.run.outcome import Options
from harness.run.suite_files import Item, distinct
from harness.run.suite_run import run_items


def run_family(
    given: argparse.Namespace, options: Options, command: str, console: Console
) -> tuple[dict, int]:
    """Evaluate the folder's references, each with the solution that is generated for it here.

    Records go to results/<device>/family/, or --output; without --again those of the same solution,
    reference and settings are kept. Returns what `suite_run.run_suite` does: a reference without a
    solution counts as one that could not be evaluated, with status 2.
    """
    references = find_references(given.family)
    output = given.output or ROOT / "results" / records.folder_of(options) / "family"
    require_folder(output, "--output")
    with tempfile.TemporaryDirectory(prefix="generated-") as folder:
        items = _generated(references, given.keep or Path(folder))
        resumed = "; the same command goes on from there"
        return run_items(items, output, given, options, command, console, not given.again, resumed)


def find_references(folder: Path) -> list[Path]:
    """The references of a KernelBench checkout, its problem folder or any other, in the order of
    their problems. Raises UsageError where there is none.
    """
    from generator.references import transposed_references  # it imports nothing of torch's

    if not folder.is_dir():
        raise UsageError(f"--family {folder}: no such folder")
    inner = folder / "KernelBench"
    is_checkout = not any(folder.glob("level*")) and any(inner.glob("level*"))
    found = transposed_references(inner if is_checkout else folder)
    if not found:
        told = "no reference (*.py with a Model) in it has a transposed convolution"
        raise UsageError(f"--family {folder}: {told}")
    return sorted(found, key=_order)


def _order(path: Path) -> tuple:
    """Problems by level and number, others by path."""
    level, _, number = catalog.problem_of_files(path, None).id.partition("/")
    known = level.isdecimal() and number.isdecimal()
    return (not known, *((int(level), int(number)) if known else ()), str(path))


def _generated(references: list[Path], folder: Path) -> list[Item]:
    """An item for each reference; its solution lies in `folder`, or `why` says why it does not."""
    jobs = {
        path: folder / f"{number:03}" / path.name for number, path in enumerate(references, start=1)
    }
    if len({path.name for path in references}) == len(references):
        jobs = {path: folder / path.name for path in references}
    done = 0

    def note(path: Path, why: str | None) -> None:
        nonlocal done
        done += 1
        told = f"not generated: {why}" if why else "generated"
        print(f"[{done}/{len(jobs)}] {path.stem}: {told}", file=sys.stderr)

    reasons = generating.generate_files(jobs, note)
    return distinct([_item(path, jobs[path], reasons[path]) for path in references])


def _item(reference: Path, solution: Path, why: str | None) -> Item:
    problem: Problem = catalog.problem_of_files(reference, solution)
    name = problem.record_name
    if why:
        return Item(reference.stem, solution, None, name, why=f"not generated: {why}")
    return Item(reference.stem, solution, problem, name)
