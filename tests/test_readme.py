"""The README's paths exist, and its commands are ones the programs understand."""

import re
import shlex
from pathlib import Path

import pytest

from harness.arguments import make_parser
from tests.solution_tools import ROOT

PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "pytorch.md",
    ROOT / "docs" / "results.md",
    ROOT / "harness" / "README.md",
    ROOT / "kernels_src" / "README.md",
    ROOT / "kernels_src" / "cpu" / "README.md",
]
CODE = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"^[\w./-]+(?:/|\.(?:py|md|h|cuh|cu|cpp|txt))$|^LICENSE$|^\.ci/run$")


PLACEHOLDER = re.compile(r"\b(?:NAME|DIR|FILE)\b")


def code_spans(page: Path) -> list[str]:
    return [span for span in CODE.findall(page.read_text()) if not PLACEHOLDER.search(span)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_exist(page):
    paths = [span for span in code_spans(page) if PATH.match(span)]
    assert paths, "no path found: has the page's style changed?"
    missing = [p for p in paths if not any((base / p).exists() for base in (ROOT, page.parent))]
    assert not missing


def commands() -> list[list[str]]:
    text = (ROOT / "README.md").read_text()
    blocks = re.findall(r"```\n(.*?)```", text, re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()] + CODE.findall(text)
    parts = [part.strip() for line in lines for part in line.split("&&")]
    return [shlex.split(part) for part in parts if part.startswith("python")]


def test_the_two_commands_install_then_run():
    text = (ROOT / "README.md").read_text()
    install = "python3 -m pip install -r requirements.txt && "
    assert f"{install}python run_eval.py --problem 65" in text
    assert f"{install}python -m pytest -q" in text


def test_commands_are_understood():
    evaluations = 0
    for words in commands():
        if words[1] == "run_eval.py":
            make_parser().parse_args(words[2:])  # exits 2 on an unknown option
            evaluations += 1
        elif words[1] == "-m" and words[2] not in ("pip", "pytest"):
            module = ROOT.joinpath(*words[2].split("."))
            assert (module / "__main__.py").exists() or module.with_suffix(".py").exists(), words
    assert evaluations >= 5
