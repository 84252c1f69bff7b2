"""The candidates in a folder, and the reference that each of them is a solution of."""

import re
from dataclasses import dataclass
from pathlib import Path

from harness import catalog
from harness.catalog import Problem
from harness.errors import UsageError
from harness.report import kernelbench_files

_NUMBERED = re.compile(r"(\d+)(?:_.*)?")
_LEVEL = re.compile(r"level_?(\d+)")


@dataclass(frozen=True)
class Item:
    """One candidate: `problem` is None where no reference was found, `why` then says so."""

    label: str  # path within the suite, without .py
    solution: Path
    problem: Problem | None
    record_name: str
    sample: int | None = None
    why: str = ""


def find_items(folder: Path, reference: Path | None = None) -> list[Item]:
    """The candidates below `folder`, in natural order of their paths.

    A candidate is a *.py file whose path within the folder has no part that begins with "_" or
    ".". Its reference is `reference` if that is a file, else one of the catalogue, or of the
    folder `reference`: by level and number (level_1_problem_65_sample_0_kernel.py,
    level1/65_anything.py), by number alone (65_anything.py) where one level has it, or by name
    (the reference's file name, or one that begins with it). Raises UsageError for a missing
    folder, one without candidates, and one where no candidate has a reference.
    """
    if not folder.is_dir():
        raise UsageError(f"--suite {folder}: no such folder")
    given = _given_references(reference)
    apart = {problem.reference.resolve() for problem in given} if reference else set()
    paths = [
        path
        for path in sorted(folder.rglob("*.py"), key=_natural)
        if path.is_file()
        and path.resolve() not in apart
        and not any(part[0] in "_." for part in path.relative_to(folder).parts)
    ]
    if not paths:
        raise UsageError(f"--suite {folder}: no candidate (*.py) in it")
    items = [_item(path, folder, given, bool(reference and reference.is_file())) for path in paths]
    if all(item.problem is None for item in items):
        raise UsageError(f"--suite {folder}: no reference for any candidate ({items[0].why})")
    return distinct(items)


def _given_references(reference: Path | None) -> list[Problem]:
    if reference is None:
        return catalog.list_problems()
    if reference.is_file():
        return [catalog.problem_of_files(reference, None)]
    if not reference.is_dir():
        raise UsageError(f"--reference {reference}: no such file or folder")
    found = catalog.list_problems(reference)
    plain = sorted(reference.glob("*.py"), key=_natural)
    found += [catalog.problem_of_files(path, None) for path in plain if path.name[0] not in "_."]
    if not found:
        raise UsageError(f"--reference {reference}: no reference (*.py) in this folder")
    return found


def _item(path: Path, folder: Path, references: list[Problem], all_of_one: bool) -> Item:
    label = str(path.relative_to(folder).with_suffix(""))
    run_name = kernelbench_files.parse_run_name(path.name)
    sample = run_name[2] if run_name else None
    if all_of_one:
        found, why = references[0], ""
    else:
        found, why = _reference_of(path, run_name, references)
    if found is not None:
        found = Problem(found.id, found.name, found.reference, path)
    return Item(label, path, found, label.replace("/", "_") + ".json", sample, why)


def _reference_of(path: Path, run_name, references: list[Problem]) -> tuple[Problem | None, str]:
    numbered = _NUMBERED.fullmatch(path.stem)
    level = _LEVEL.fullmatch(path.resolve().parent.name)
    if run_name or (numbered and level):
        wanted = run_name[:2] if run_name else (int(level[1]), int(numbered[1]))
        identity = f"{wanted[0]}/{wanted[1]}"
        found = [problem for problem in references if problem.id == identity]
        return (found[0], "") if found else (None, f"no reference of problem {identity}")
    if numbered:
        number = str(int(numbered[1]))
        found = [problem for problem in references if _number(problem) == number]
        if len(found) == 1:
            return found[0], ""
    return _by_name(path.stem.lower(), references)


def _number(problem: Problem) -> str:
    numbered = _NUMBERED.fullmatch(problem.reference.stem)
    return str(int(numbered[1])) if numbered else ""


def _by_name(stem: str, references: list[Problem]) -> tuple[Problem | None, str]:
    """The reference with the longest name that is the stem or its beginning, up to a separator."""
    fitting: dict[int, list[Problem]] = {}
    for problem in references:
        for name in {problem.reference.stem.lower(), problem.name.lower()}:
            if stem == name or (stem.startswith(name) and stem[len(name)] in "_-. "):
                fitting.setdefault(len(name), []).append(problem)
    best = fitting[max(fitting)] if fitting else []
    if len(best) == 1:
        return best[0], ""
    if best:
        return None, f"more than one reference fits: {', '.join(p.id for p in best)}"
    return None, "no reference by level and number, number or name"


def _natural(path: Path) -> list:
    """Sort key in which 2 comes before 10."""
    parts = re.split(r"(\d+)", str(path))
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts]


def distinct(items: list[Item]) -> list[Item]:
    """No two candidates may share a record: later ones of a name get a number."""
    seen: dict[str, int] = {}
    for index, item in enumerate(items):
        count = seen[item.record_name] = seen.get(item.record_name, 0) + 1
        if count > 1:
            name = f"{item.record_name.removesuffix('.json')}+{count}.json"
            items[index] = Item(**{**item.__dict__, "record_name": name})
    return items
