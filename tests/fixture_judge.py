"""Evaluates the fixtures: solutions wrong on purpose, and honest ones."""

from pathlib import Path

import torch

from harness.catalog import Problem
from harness.judge.candidate import Candidate
from harness.run.evaluate import Evaluation
from harness.run.outcome import Options
from harness.run.progress import Silent
from tests.forked_candidate import ForkedCandidate

FIXTURES = Path(__file__).parent / "fixtures"
MEMORY_BYTES = 2 << 30


def short_of_memory(device, build_dir=None) -> Candidate:
    """A candidate that may hold little host memory."""
    return ForkedCandidate(device, build_dir, memory_bytes=MEMORY_BYTES)


def evaluate(
    reference: str, solution: Path, batch: int, start=ForkedCandidate, device="cpu", **options
):
    """The outcome of evaluating a solution of tests/fixtures/<reference>.py."""
    problem = Problem(reference, reference, FIXTURES / f"{reference}.py", solution)
    settings = {"check_only": True, "baselines": (), "timeout": 60.0, **options}
    chosen = Options(device=torch.device(device), batch=batch, **settings)
    return Evaluation(problem, chosen, Silent(), start=start).run()


def running(words: bytes | None) -> list[bytes]:
    """Command lines of processes that hold the words."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ")
        except OSError:
            continue
        if words is not None and words in line:
            found.append(line)
    return found


def names(folder: str) -> list[str]:
    """The fixtures in a folder."""
    return sorted(path.stem for path in (FIXTURES / folder).glob("*.py"))
