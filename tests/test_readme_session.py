"""The README's session runs: its model is generated, evaluated, compared and dropped in."""

import re
import subprocess
import sys

import pytest

from tests import readme_session

pytestmark = pytest.mark.sweep  # a build and two evaluations
TEXT = readme_session.README.read_text()
# The evaluation as a stranger runs it takes minutes: here one sample, and eager alone beside it; of
# the second one the README shows no times.
LESS = {
    "mine.json": "--batch 1 --one-size --build-dir builds --baselines eager",
    "avx2.json": "--batch 1 --one-size --build-dir builds --check-only",
}
WORDS = re.compile(r"[A-Za-z]{3,}")
DEVICE = re.compile(r"(?<=^my_model my_model on )[^,]+")  # another one elsewhere


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """The folder, and what each command of the session prints, with less to time."""
    folder = tmp_path_factory.mktemp("session")
    environment = readme_session.prepare(folder, TEXT)
    printed = {}
    for command in readme_session.commands(TEXT):
        more = LESS.get(command.split()[-1], "") if "--solution" in command else ""
        printed[command] = readme_session.run(command, folder, environment, more)
    return folder, environment, printed


def shown(command: str) -> list[str]:
    """The lines below a command in the README."""
    block = TEXT.partition(f"$ {command}\n")[2].partition("```")[0]
    return block.partition("\n$ ")[0].splitlines()


def words_of(line: str) -> set[str]:
    return set(WORDS.findall(DEVICE.sub("", line)))


def test_the_readme_shows_what_the_commands_print(answers):
    """Line by line, numbers and the device's name apart. Where a run was noisy or had more
    baselines a line is extra.
    """
    folder, _, printed = answers
    for command, answer in printed.items():
        known = [words_of(line) for line in readme_session.shown(command, answer)]
        lines = [line for line in shown(command) if WORDS.search(line)]
        assert lines, command
        for line in lines:
            words = words_of(line) - {"compile", "channels_last", "channels", "last"}
            if "compile" in line or "channels_last" in line or "(!)" in line:
                continue
            assert any(words <= other or other <= words for other in known if other), line


def test_the_solution_drops_in(answers):
    folder, environment, _ = answers
    code = readme_session.python_blocks(TEXT)[1]
    code += "x = torch.randn(2, 64, 9, 7)\nassert torch.allclose(fast(x), model(x), atol=1e-5)\n"
    code = f"import torch\n{code}fast(x).sum().backward()\nprint(fast.up.weight.grad.shape)\n"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0 and "torch.Size([64, 32, 4, 4])" in done.stdout, done.stderr
