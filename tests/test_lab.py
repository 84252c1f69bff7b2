"""The diary in lab/ names commits that exist, and stays out of the product's pages."""

import re
import subprocess

import pytest

from tests.solution_tools import ROOT

pytest.importorskip("matplotlib")  # pinned; a machine that only runs GPU tests may lack it
from lab import ladder, training_curves  # noqa: E402

LAB = ROOT / "lab"
PAGES = sorted(LAB.glob("*.md"))
HASH = re.compile(r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7}\b|\b\d{7}\b")


def test_ladder_is_read_and_its_picture_drawn_again_byte_for_byte():
    read = ladder.read_ladder(ladder.PAGE)
    assert read.problems == ("1/65", "1/69", "2/11", "2/19")
    assert read.steps[0][:2] == ("eager PyTorch", (2.26, 2.47, 1.18, 6.5))
    versions = [int(name.partition(":")[0]) for name, _, _ in read.steps[2:]]
    assert versions == list(range(1, 18))
    assert read.steps[-1][1][2:] == (None, None)  # not measured in version 17
    assert read.steps[7][2].startswith("DRAM rows")
    assert ladder.main(["--check"]) == 0, "run: python -m lab.ladder"


def test_training_curves_are_drawn_again_byte_for_byte(tmp_path, monkeypatch):
    monkeypatch.setattr(training_curves, "PICTURE", tmp_path / "drawn.svg")
    curves = training_curves.collected()
    assert {name: len(seeds) for name, seeds in curves.items()} == {"dcgan_generator": 5, "unet": 5}
    training_curves.draw(curves)
    committed = training_curves.RESULTS / "training_curves.svg"
    assert (tmp_path / "drawn.svg").read_bytes() == committed.read_bytes()


@pytest.mark.parametrize("row", ["| 1: first | – | 1.0 |\n", "| 1: first | – | 1.0 | – | x |\n"])
def test_ladder_with_a_time_missing_is_refused(tmp_path, row):
    """The first row's times are what others are compared with."""
    page = tmp_path / "page.md"
    head = "| version | commit | 1/65 | 1/69 | why |\n| --- | --- | --- | --- | --- |\n"
    page.write_text(f"## Ladder of it\n\n{head}{row}")
    with pytest.raises(ValueError, match="version '1: first'"):
        ladder.read_ladder(page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commits_exist(page):
    named = sorted(set(HASH.findall(page.read_text())))
    assert named, "an entry says at which commit it can be run"
    if subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True).returncode:
        pytest.skip("not a git clone")
    shallow = ["git", "rev-parse", "--is-shallow-repository"]
    if subprocess.run(shallow, cwd=ROOT, capture_output=True, text=True).stdout.strip() == "true":
        pytest.skip("a shallow clone lacks old commits")
    asked = "".join(f"{name}^{{commit}}\n" for name in named)
    told = subprocess.run(
        ["git", "cat-file", "--batch-check"], cwd=ROOT, input=asked, capture_output=True, text=True
    ).stdout.splitlines()
    assert [line for line in told if " commit " not in line] == []


def test_no_page_links_to_it_as_documentation():
    """The layout table names the folder; nothing names a file of it."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    assert [page.name for page in pages if re.search(r"lab/\w", page.read_text())] == []
