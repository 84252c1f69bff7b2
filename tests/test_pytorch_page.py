"""Every row of docs/pytorch.md names tests, and every test it names is there."""

import re

from tests.solution_tools import ROOT

PAGE = (ROOT / "docs" / "pytorch.md").read_text()
ROWS = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if line.startswith("| ")]
NAMED = re.compile(r"`(tests/test_\w+\.py)(?:::(\w+))?`")


def test_every_row_is_backed_by_a_test():
    features = [cells for cells in ROWS[2:] if not cells[0].startswith("**")]
    assert len(features) >= 30
    for cells in features:
        assert len(cells) == 4 and NAMED.search(cells[3]), cells[0]


def test_named_tests_exist():
    named = NAMED.findall(PAGE)
    missing = [
        (path, test)
        for path, test in named
        if not (ROOT / path).exists()
        or test
        and not re.search(rf"^def {test}\(", (ROOT / path).read_text(), re.MULTILINE)
    ]
    assert not missing


def test_every_test_of_the_features_is_named():
    """A test of these files that the page leaves out would be a row that nobody can find."""
    named = {test for _, test in NAMED.findall(PAGE)}
    for kind in ("transforms", "compile", "training", "processes", "gpu"):
        text = (ROOT / "tests" / f"test_pytorch_{kind}.py").read_text()
        left_out = set(re.findall(r"^def (test_\w+)\(", text, re.MULTILINE)) - named
        assert not left_out, kind
