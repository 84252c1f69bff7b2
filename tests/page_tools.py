"""The pages a stranger reads, and what the tests of them look for."""

import re
from pathlib import Path

from tests.solution_tools import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_RENDERED = re.compile(r"<!-- (\w+)[^>]* -->\n.*?<!-- /\1 -->", re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_COMMAND = re.compile(r"^(?:\w+=\S+ )*python3? ")


def prose(page: Path) -> str:
    """A page without fenced blocks and without what is rendered from records."""
    return _FENCE.sub("", _RENDERED.sub("", page.read_text()))


def code_spans(page: Path) -> list[str]:
    """What stands between single backticks, outside of fenced blocks."""
    return _CODE.findall(_FENCE.sub("", page.read_text()))


def commands(page: Path) -> list[str]:
    """Every command of a page, those of fenced blocks and those of the text."""
    lines = [line for block in _FENCE.findall(page.read_text()) for line in block.splitlines()]
    lines = [line.removeprefix("$ ") for line in lines] + code_spans(page)
    parts = [part.strip() for line in lines for part in line.split("&&")]
    return [part for part in parts if _COMMAND.match(part)]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    made: list[str] = []
    for heading in re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text()), re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        made.append(f"{plain}-{made.count(plain)}" if plain in made else plain)
    return set(made)
