"""What a card says of a solution: read from its file, from nowhere else, marked when it is old."""

import hashlib

import pytest

from harness.report.solution_story import story
from tests.solution_tools import PROBLEMS, ROOT

GENERATED = '''"""block: ConvTranspose2d -> LeakyReLU.

One kernel walks a
tap table.

On a CUDA tensor the CUDA kernels run.

Left to PyTorch, in the reference's order:
    line 18: slice: left, no kernel computes it
    line 19: conv Conv2d: left, no kernel computes it

Generated, do not edit:
    python -m generator block.py -o made.py
"""
'''


def placed(folder, text: str, name: str = "made.py") -> dict:
    """A record of this solution, whose file lies in `folder`."""
    (folder / name).write_text(text)
    return {"solution": name, "solution_sha256": hashlib.sha256(text.encode()).hexdigest()}


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda path: path.stem)
def test_every_solution_says_what_it_fuses(problem):
    name = f"solutions/{problem.parent.name}/{problem.name}"
    told = story({"solution": name, "solution_sha256": "another"})
    assert told.head.startswith("ConvTranspose2d") and not told.head.endswith(".")
    assert told.left == () and told.changed
    assert len(told.how) == 1 and "tap table" in told.how[0]
    digest = hashlib.sha256((ROOT / name).read_bytes()).hexdigest()
    assert not story({"solution": name, "solution_sha256": digest}).changed


def test_what_is_left_to_pytorch_is_told(tmp_path):
    told = story(placed(tmp_path, GENERATED), tmp_path)
    assert told.head == "ConvTranspose2d -> LeakyReLU" and not told.changed
    assert told.how == ("One kernel walks a tap table.",)
    assert told.left == (
        "line 18: slice: left, no kernel computes it",
        "line 19: conv Conv2d: left, no kernel computes it",
    )


def test_somebody_elses_words_are_theirs(tmp_path):
    record = placed(tmp_path, '"""Mine: fast.\n\nIt is.\n"""\nraise SystemExit("was run")\n')
    told = story(record, tmp_path)
    assert (told.head, told.how, told.left) == ("Mine: fast.", ("It is.",), None)


@pytest.mark.parametrize(
    "text", ["x = 1\n", "def (\n", "", "\0"], ids=["no docstring", "no Python", "empty", "null"]
)
def test_a_file_that_does_not_tell_is_none(tmp_path, text):
    assert story(placed(tmp_path, text), tmp_path) is None


def test_only_the_checkout_and_the_records_folder_are_read(tmp_path):
    inner = tmp_path / "records"
    inner.mkdir()
    placed(tmp_path, GENERATED)
    for name in (
        "../made.py",
        str(tmp_path / "made.py"),
        "missing.py",
        "../../etc/passwd",
        "",
        None,
    ):
        assert story({"solution": name}, inner) is None
    (inner / "link.py").symlink_to(tmp_path / "made.py")
    assert story({"solution": "link.py"}, inner) is None
    assert story({"solution": "made.py"}, tmp_path) is not None
