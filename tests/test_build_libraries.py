"""build_libraries() of solutions: every library that is else built when first called, ahead; and
the builds ahead of an evaluation, which call it.
"""

import ast
import json
import re
import subprocess
import sys

import pytest

from tests.solution_tools import PROBLEMS, REFERENCES, ROOT, generated
from tests.sweeps import swept

TINY = ROOT / "tests" / "fixtures" / "tiny.py"
SOURCES = [*PROBLEMS, *sorted(REFERENCES.glob("*.py"))]
SOURCES = [path for path in SOURCES if "torch.no_grad()\n    def forward" not in path.read_text()]


def called(text: str, nvcc: bool, **given) -> list[str]:
    """What the function of a solution's text calls that loads a library, in its order."""
    made: list[str] = []
    tree = ast.parse(text)
    (own,) = (n for n in tree.body if getattr(n, "name", None) == "build_libraries")
    names = {n.id for n in ast.walk(own) if isinstance(n, ast.Name) and n.id.startswith("_")}
    space = {
        name: lambda *a, name=name: made.append(" ".join([name, *map(str, a)])) for name in names
    }
    space["_can_build_cuda"] = lambda: nvcc
    exec(ast.unparse(own), space)
    space["build_libraries"](**given)
    return made


def loading(text: str) -> list[str]:
    """The functions that load a library besides forward's, and the numbers of folded norms."""
    found = re.findall(r"^def (\w+)\((?:number: int)?\):\n(?:.*\n)*?\n\n", text, re.MULTILINE)
    bodies = {
        name: re.search(rf"^def {name}\(.*\n(?:[ \n].*\n|\n)*", text, re.M)[0] for name in found
    }
    names = [name for name, body in bodies.items() if "_load_operators" in body and "()" in body]
    return [name for name in names if not name.startswith("_load")]


@pytest.mark.parametrize("path", swept(SOURCES, range(0, len(SOURCES), 8)), ids=lambda p: p.stem)
def test_every_library_is_built(path):
    text = generated(path)
    assert sorted(called(text, True, eval_mode=False)) == sorted(loading(text))
    of_forward = called(text, True, backward=False, eval_mode=False)
    assert of_forward == [
        name for name in loading(text) if "grad" not in name and "back" not in name
    ]
    assert called(text, False) == []


def test_what_eval_mode_alone_calls():
    text = generated(REFERENCES / "dcgan_block.py")
    folds = [f"_folded_library {number}" for number in range(_num_folds(text))]
    others = called(text, True, backward=False, eval_mode=False)
    assert folds and called(text, True, backward=False) == [*others, *folds]


def _num_folds(text: str) -> int:
    (rows,) = re.findall(r"^_FOLDED_NORMS = (.*)", text, re.MULTILINE)
    return len(ast.literal_eval(rows))


def test_without_libraries_there_is_none():
    assert "build_libraries" not in generated(PROBLEMS[0], own_gradients=False)


NOTING = """
import json, os


def build_libraries(backward: bool = True, eval_mode: bool = True) -> None:
    with open(os.environ["TORCH_EXTENSIONS_DIR"] + "/asked.json", "w") as file:
        json.dump([backward, eval_mode], file)
"""


@pytest.mark.parametrize("flags", swept([["--backward"], ["--eval"], []], (0, 1)), ids=str)
def test_an_evaluation_builds_ahead(tmp_path, flags):
    assert ahead(tmp_path, NOTING, flags).returncode == 0
    asked = json.loads((tmp_path / "built" / "asked.json").read_text())
    assert asked == ["--backward" in flags, "--eval" in flags]


def test_one_that_does_not_build(tmp_path):
    failed = ahead(tmp_path, "def build_libraries(**_):\n    raise RuntimeError('no cubin')\n", [])
    assert failed.returncode == 1 and "no cubin" in failed.stderr


def ahead(tmp_path, more: str, flags: list[str]):
    solution = tmp_path / "solution.py"
    solution.write_text(TINY.read_text().replace("class Model(", "class ModelNew(") + more)
    given = {"reference": TINY, "solution": solution, "build-dir": tmp_path / "built"}
    words = [str(word) for name, path in given.items() for word in (f"--{name}", path)]
    command = [sys.executable, "-m", "harness.judge.build_ahead", *words, "--timeout", "60", *flags]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
