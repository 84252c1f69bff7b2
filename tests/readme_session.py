"""The README's session: its commands run on the model that stands above them.

    python -m tests.readme_session

runs them as they stand (minutes, on a machine that should be quiet: the times are printed) and
writes what they print into the README. tests/test_readme_session.py runs them with little to time.
Progress, which goes to standard error, is not shown, and of a long answer only the parts that
`SHOWN` names are; "…" stands for the rest.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.solution_tools import ROOT

README = ROOT / "README.md"
_SESSION = re.compile(r"(<!-- session -->\n```console\n)(.*?)(```\n<!-- /session -->\n)", re.DOTALL)
_PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
# Of which command, the first and the last line of a part that is shown.
SHOWN = {
    "TCONV_KERNEL": [(r"my_model", r"accepted")],
    "--solution": [(r"my_model", r".*over the fastest baseline")],
    "--compare": [(r"┏.*", r"└.*")],
}


def commands(text: str) -> list[str]:
    """The session's commands in order."""
    return [line[2:] for line in _SESSION.search(text)[2].splitlines() if line.startswith("$ ")]


def python_blocks(text: str) -> list[str]:
    """The model, and what is done with its solution."""
    return _PYTHON.findall(text)


def prepare(folder: Path, text: str) -> dict[str, str]:
    """Puts the model where the commands look for it; returns the environment to run them in."""
    (folder / "my_model.py").write_text(python_blocks(text)[0])
    (folder / "run_eval.py").symlink_to(ROOT / "run_eval.py")
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return os.environ | {"PYTHONPATH": path, "COLUMNS": "100"}


def run(command: str, folder: Path, environment: dict[str, str], more: str = "") -> str:
    """What a command prints on standard output. Raises RuntimeError with what it says where it
    fails.
    """
    words = command.split()
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        environment = environment | {name: value}
    done = subprocess.run(
        [sys.executable, *words[1:], *more.split()],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{command}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def shown(command: str, printed: str) -> list[str]:
    """The lines of an answer that the README shows."""
    lines = [line.rstrip() for line in printed.splitlines()]
    parts = next((SHOWN[key] for key in SHOWN if key in command), None)
    if parts is None:
        return lines
    kept = []
    for first, last in parts:
        begin = next(i for i, line in enumerate(lines) if re.match(first, line))
        end = next(i for i in range(begin, len(lines)) if re.match(last, lines[i]))
        kept += lines[begin : end + 1]
    return [*kept, "…"] if kept != lines else lines


def session(text: str, folder: Path) -> str:
    """The session as it goes now."""
    environment = prepare(folder, text)
    told = []
    for command in commands(text):
        print(f"$ {command}", file=sys.stderr)
        told += [f"$ {command}", *shown(command, run(command, folder, environment))]
    return "\n".join(told) + "\n"


def main() -> int:
    """Writes the session anew."""
    with tempfile.TemporaryDirectory() as folder:
        made = session(README.read_text(), Path(folder))
    README.write_text(_SESSION.sub(lambda match: match[1] + made + match[3], README.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
