"""Sources are small: what a file is for fits a reader's head, and a line fits a screen."""

import subprocess

import pytest

from tests.solution_tools import ROOT

MAX_LINES, MAX_COLUMNS = 400, 120
SUFFIXES = {".py", ".h", ".cpp", ".cuh", ".cu"}
FOLDERS = ("generator", "harness", "kernels_src", "tests")  # solutions/ is generated


def sources():
    found = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*")]
    return sorted([*top_level(), *(path for path in found if path.suffix in SUFFIXES)])


def top_level():
    """The project's own files, not those that its reader writes beside them (README.md)."""
    found = list(ROOT.glob("*.py"))
    tracked = subprocess.run(
        ["git", "ls-files", "--", *(path.name for path in found)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if tracked.returncode != 0:  # no checkout
        return found
    return [path for path in found if path.name in tracked.stdout.splitlines()]


def faults(name: str, text: str) -> list[str]:
    """What is too long in a file's text, each with its place."""
    lines = text.splitlines()
    found = [
        f"{name}:{number}: {len(line)} columns, allowed are {MAX_COLUMNS}"
        for number, line in enumerate(lines, 1)
        if len(line) > MAX_COLUMNS
    ]
    if len(lines) > MAX_LINES:
        found.append(f"{name}: {len(lines)} lines, allowed are {MAX_LINES}")
    return found


def test_sources_are_small():
    paths = sources()
    assert {path.suffix for path in paths} == SUFFIXES and ROOT / "run_eval.py" in paths
    assert [
        fault
        for path in paths
        for fault in faults(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
    ] == []


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("\n" * 400 + "x", "a.py: 401 lines"),
        ("x\n" + "x" * 121, "a.py:2: 121 columns"),
        ("x" * 120 + "\n" * 400, ""),
    ],
)
def test_what_is_too_long_is_named(text, where):
    found = faults("a.py", text)
    assert len(found) == bool(where) and all(fault.startswith(where) for fault in found)
