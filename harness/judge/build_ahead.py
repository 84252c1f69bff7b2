"""`python -m harness.judge.build_ahead` fills a candidate's build folder without touching a GPU.

The candidate is loaded in a process of its own, as for an evaluation but on the CPU, so that what
it compiles on import lies ready in --build-dir when its turn on a GPU comes, and what its function
build_libraries(backward, eval_mode) compiles, where it has one. Status 0: loaded, and built.
"""

import argparse
import signal
import sys
from pathlib import Path

import torch

from harness.errors import HarnessError, Rejected
from harness.judge.candidate import Candidate
from harness.judge.reference import Reference


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m harness.judge.build_ahead", description=__doc__
    )
    parser.add_argument("--reference", type=Path, required=True)
    parser.add_argument("--solution", type=Path, required=True)
    parser.add_argument("--build-dir", type=Path, required=True)
    parser.add_argument("--timeout", type=float, required=True)
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--eval", action="store_true")
    given = parser.parse_args(arguments)
    # So that the candidate's process goes, too, when this one is told to stop.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        reference = Reference(given.reference)
        with Candidate(torch.device("cpu"), given.build_dir) as candidate:
            candidate.start()
            candidate.limit_time(given.timeout)
            candidate.load(given.solution, reference.init_inputs, 0, torch.float32, "forbid")
            candidate.build(given.backward, given.eval)
    except (HarnessError, Rejected) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
