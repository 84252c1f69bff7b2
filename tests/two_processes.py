"""Runs a script in two processes that find each other."""

import subprocess
import sys
from pathlib import Path

from tests.solution_tools import ROOT


def run_two(script: str, shelf, folder: Path) -> tuple[list[str], list[str]]:
    """(lines that both print, the end of each one's errors). The script's arguments are its rank, a
    file where they meet, and a folder of its own; builds are the shelf's.
    """
    running = []
    with shelf.build_folder():
        for rank in range(2):
            own = folder / str(rank)
            own.mkdir()
            command = [sys.executable, "-c", script, str(rank), str(folder / "store"), str(own)]
            pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
            running.append(subprocess.Popen(command, cwd=ROOT, text=True, **pipes))
        try:
            ended = [process.communicate(timeout=240) for process in running]
        finally:
            for process in running:
                process.kill()
    lines = [line for out, _ in ended for line in out.splitlines()]
    return lines, [error[-800:] for _, error in ended]
