"""The catalogue as --list shows it."""

from harness import catalog
from harness.catalog import ROOT


def rows() -> list[dict]:
    """One for each problem; paths within the project."""
    return [
        {
            "problem": problem.id,
            "name": problem.name,
            "reference": str(problem.reference.relative_to(ROOT)),
            "solution": str(problem.solution.relative_to(ROOT)),
            "solution_exists": problem.solution.is_file(),
        }
        for problem in catalog.list_problems()
    ]


def lines() -> list[str]:
    """The rows as text."""
    return [
        f"{row['problem']:6} {row['name']:60} "
        f"{row['solution'] if row['solution_exists'] else 'no solution yet'}"
        for row in rows()
    ]
