"""Records made up for tests, of one that a GPU left."""

import copy
import json
from pathlib import Path

from tests.solution_tools import ROOT

GPU = json.loads((ROOT / "tests" / "fixtures" / "records" / "gpu.json").read_text())


def record(**changes) -> dict:
    return {**copy.deepcopy(GPU), **changes}


def times(solution: float, **baselines: float) -> dict:
    medians = {"solution": solution, **baselines}
    return {name: {"median": value, "iqr": 0.1} for name, value in medians.items()}


def timed(problem: str, speedup: float, **changes) -> dict:
    """Accepted, with eager the only baseline."""
    fastest = {"baseline": "eager", "speedup": speedup, "low": speedup, "high": speedup}
    measured = {"ms": times(1.0, eager=speedup), "speedup": {"eager": speedup}, "fastest": fastest}
    return record(problem=problem, **measured, **changes)


def rejected(problem: str, *reasons: str, **changes) -> dict:
    """Rejected; the times in it, which a record of ours would not hold, must not be shown."""
    return record(problem=problem, verdict="rejected", reasons=list(reasons), **changes)


def untimed(problem: str) -> dict:
    """Accepted, but only checked."""
    return record(problem=problem, ms={}, speedup={}, fastest=None, roofline=None)


def written(folder: Path, *records: dict) -> Path:
    """Writes records into a folder below `folder`, one file each."""
    made = folder / "records"
    made.mkdir(exist_ok=True)
    for index, value in enumerate(records):
        (made / f"{index}.json").write_text(json.dumps(value))
    return made
