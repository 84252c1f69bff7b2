"""What `python -m pytest` leaves out, what it never does, and the line that says so."""

import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tests.solution_tools import ROOT
from tests.sweeps import is_left_out, swept


def test_parameters_that_are_not_kept_are_sweeps():
    def marked(values):
        return [bool(getattr(value, "marks", ())) for value in values]

    assert marked(swept(range(4))) == [False, True, True, True]
    assert marked(swept("abc", (0, 2))) == [False, True, False]
    assert marked(swept("abc", {"b"}.__contains__)) == [True, False, True]
    pairs = swept([(1, 2), (3, 4)], names=2)
    assert pairs[0] == (1, 2) and pairs[1].values == (3, 4)
    assert swept([(1, 2), (3, 4)])[1].values == ((3, 4),)


def test_files_that_ci_names_are_there():
    """A file that is renamed would else take its sweeps, and their builds, to the other core."""
    names = set(re.findall(r"test_\w+\.py", (ROOT / ".ci" / "run").read_text()))
    assert names and all((ROOT / "tests" / name).is_file() for name in names)


@pytest.mark.parametrize(
    ("marks", "expression", "arguments", "left_out"),
    [
        ({"sweep"}, "", ["tests"], True),
        ({"sweep"}, "sweep", ["tests"], False),
        ({"sweep"}, "gpu", ["tests"], False),
        ({"sweep"}, "", ["tests/test_a.py::test_b"], False),
        ({"sweep", "gpu"}, "", ["tests"], False),
        (set(), "", ["tests"], False),
    ],
)
def test_what_is_left_out(marks, expression, arguments, left_out):
    item = SimpleNamespace(
        nodeid="tests/test_a.py::test_b",
        get_closest_marker=lambda name: name if name in marks else None,
    )
    assert is_left_out(item, _config(expression, arguments)) == left_out


def test_shares_are_about_even_and_leave_out_no_other_test():
    kept = []
    for index in range(300):
        item = SimpleNamespace(nodeid=f"tests/test_a.py::test_b[{index}]")
        item.get_closest_marker = {"sweep": "sweep"}.get
        kept.append(not is_left_out(item, _config("sweep", ["tests"], share=3)))
        item.get_closest_marker = {}.get
        assert not is_left_out(item, _config("not gpu", ["tests"], share=3))
    assert 70 < sum(kept) < 130


def _config(expression: str, arguments: list, share: int = 1) -> SimpleNamespace:
    options = {"--sweep-share": share}
    return SimpleNamespace(
        option=SimpleNamespace(markexpr=expression), args=arguments, getoption=options.get
    )


def test_a_share_is_a_positive_number():
    command = [sys.executable, "-m", "pytest", "--co", "--sweep-share", "0", "tests/test_sweeps.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 4 and "--sweep-share: must be 1 or more, got 0" in done.stderr


def test_a_line_says_how_many_are_left_out():
    command = [sys.executable, "-m", "pytest", "-q", "--co", "tests/test_cuda_emulated_layers.py"]
    command += ["tests/test_gpu_layers.py"]
    said, swept_only = (
        subprocess.run([*command, *more], cwd=ROOT, capture_output=True, text=True).stdout
        for more in ((), ("-m", "sweep"))
    )
    count = int(re.search(r"^(\d+) sweeps deselected: python -m pytest -m sweep$", said, re.M)[1])
    assert 0 < count == len(re.findall("^tests/test_cuda_emulated_layers.py::", swept_only, re.M))
    assert "tests/test_gpu_layers.py::" in said and "sweeps deselected" not in swept_only
