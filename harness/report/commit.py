"""The commit that a record was made at."""

import functools
import subprocess
from pathlib import Path

from harness.catalog import ROOT


@functools.cache
def commit_of(root: Path = ROOT) -> dict | None:
    """{"sha": HEAD, "dirty": whether a file that git knows had been changed}; None where `root` is
    no checkout's top folder, or there is no git.
    """
    where = _git(root, "rev-parse", "--show-toplevel", "HEAD")
    if where is None or len(lines := where.splitlines()) != 2:
        return None
    top, sha = lines
    changed = _git(root, "status", "--porcelain", "--untracked-files=no")
    if changed is None or Path(top).resolve() != root.resolve():
        return None
    return {"sha": sha, "dirty": bool(changed.strip())}


def _git(root: Path, *words: str) -> str | None:
    command = ["git", "--no-optional-locks", "-C", str(root), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout
