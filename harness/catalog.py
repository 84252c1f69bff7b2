"""Which problems there are and where their files lie."""

import re
from dataclasses import dataclass
from pathlib import Path

from harness.errors import UsageError

ROOT = Path(__file__).resolve().parent.parent
PROBLEMS = ROOT / "harness" / "problems"
SOLUTIONS = ROOT / "solutions"
_FILE = re.compile(r"(?P<number>\d+)_(?P<name>.+)\.py")


@dataclass(frozen=True)
class Problem:
    """One problem: its reference file and the place of its solution.

    `id` is "<level>/<number>" for a catalogued problem, else the reference file's stem.
    """

    id: str
    name: str
    reference: Path
    solution: Path | None

    @property
    def record_name(self) -> str:
        """File name of this problem's record, for example 1_65.json."""
        return self.id.replace("/", "_") + ".json"


def list_problems(root: Path = PROBLEMS) -> list[Problem]:
    """Every problem `level<L>/<N>_<name>.py` below `root`, ordered by level and number.

    A checkout of KernelBench has these folders one further down.
    """
    found = []
    if not any(root.glob("level*")):
        root = root / "KernelBench"
    for path in root.glob("level*/*.py"):
        match = _FILE.fullmatch(path.name)
        level = path.parent.name.removeprefix("level")
        if match and level.isdigit():
            solution = SOLUTIONS / path.parent.name / path.name
            key = (int(level), int(match["number"]))
            found.append((key, Problem(f"{key[0]}/{key[1]}", match["name"], path, solution)))
    return [problem for _, problem in sorted(found, key=lambda item: item[0])]


def find_problem(text: str) -> Problem:
    """The one problem meant by "65", "1/65", "level1/65" or a part of a name.

    Raises UsageError when none or more than one matches.
    """
    problems = list_problems()
    known = ", ".join(f"{problem.id} {problem.name}" for problem in problems)
    if re.fullmatch(r"(level)?\d+/\d+", text):
        matches = [problem for problem in problems if problem.id == text.removeprefix("level")]
    elif text.isdigit():
        matches = [problem for problem in problems if problem.id.split("/")[1] == text]
    else:
        wanted = text.lower()
        matches = [p for p in problems if wanted and wanted in p.reference.stem.lower()]
    if not matches:
        raise UsageError(
            f"--problem {text!r}: no such problem; known are {known}; of any other "
            "run_eval.py --reference FILE generates and evaluates a solution"
        )
    if len(matches) > 1:
        several = ", ".join(f"{problem.id} {problem.name}" for problem in matches)
        raise UsageError(f"--problem {text!r}: more than one matches ({several})")
    return matches[0]


def problem_of_files(reference: Path, solution: Path | None) -> Problem:
    """The problem made of a reference file given by hand, named as in the catalogue if it fits."""
    match = _FILE.fullmatch(reference.name)
    level = reference.resolve().parent.name.removeprefix("level")
    if match and level.isdigit():
        return Problem(f"{int(level)}/{int(match['number'])}", match["name"], reference, solution)
    return Problem(reference.stem, reference.stem, reference, solution)
