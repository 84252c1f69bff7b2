"""Solution files as a benchmark uses them: executed from strings, several at once, under other
build folders.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from generator import emit, operator_layer
from tests.solution_tools import PROBLEMS, ROOT, load_text
from tests.sweeps import swept

SOLUTIONS = sorted((ROOT / "solutions").glob("level*/*.py"))
LOAD = (
    "import sys; text = open(sys.argv[1]).read(); "
    "exec(compile(text, 'solution', 'exec'), {'__name__': 'solution'})"
)


def by_number(number):
    return next(path for path in SOLUTIONS if path.stem.startswith(f"{number}_"))


@pytest.fixture(scope="module")
def built_once(tmp_path_factory):
    """A build folder that holds what loading problem 65 builds; not to be written to."""
    folder = tmp_path_factory.mktemp("built_once")
    load(folder)
    return folder


@pytest.fixture
def built(built_once, tmp_path):
    """A copy of that folder."""
    return shutil.copytree(built_once, tmp_path / "built")


def load(folder: Path, **changed) -> None:
    """Load problem 65 in a process that builds into this folder; it has to go well."""
    command = [sys.executable, "-c", LOAD, str(by_number("65"))]
    environment_ = {**os.environ, "TORCH_EXTENSIONS_DIR": str(folder), **changed}
    run = subprocess.run(command, env=environment_, timeout=240, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


BUILT = """
import os, sys
text = open(sys.argv[1]).read()
names = []
for folder in sys.argv[2:]:
    os.environ["TORCH_EXTENSIONS_DIR"] = folder
    namespace = {"__name__": "solution"}
    exec(compile(text, "solution", "exec"), namespace)
    names.append(namespace["_traced"].name())
import torch
print(*names, torch.rand(()).item())
x, outputs = torch.rand(2, 64, 6, 6), []
torch.manual_seed(0)
namespace["ModelNew"](*namespace["get_init_inputs"]())(x)
"""


@pytest.mark.sweep
@pytest.mark.parametrize("number", ["11", "65"])
def test_the_same_text_is_one_operator(number, tmp_path):
    """Loaded again in a process, under whatever build folder, it is the operator of the first time;
    in another process it has the same name.
    """
    names = []
    for folders in (("first", "second", "second"), ("third",)):
        command = [sys.executable, "-c", BUILT, str(by_number(number))]
        command += [str(tmp_path / folder) for folder in folders]
        run = subprocess.run(command, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        names += run.stdout.split()[:-1]
    assert len(set(names)) == 1 and len(names) == 4
    assert len(list((tmp_path / "first").glob("tconv_*/*.so"))) == 1
    assert not (tmp_path / "second").exists()


def test_another_text_is_another_operator(shelf):
    """Whatever of it changes: kernels, or formulas of gradients alone."""
    text = shelf.text("every_step")
    names = {shelf["every_step"].solution["_NAMESPACE"]}
    for old, new in (
        ("elementwise::relu(v)", "elementwise::tanh_(v)"),
        ("_DIGEST = '", "_DIGEST = '0"),
    ):
        assert old in text
        head = text.replace(old, new).partition("\ndef _can_build_cuda")[0]
        namespace = {}
        exec(head, namespace)
        names.add(namespace["_NAMESPACE"])
    assert len(names) == 3


def test_the_digest_is_of_the_python_half(tmp_path, monkeypatch):
    """Another formula of a gradient gives another digest."""
    runtime = tmp_path / "runtime"
    shutil.copytree(operator_layer.RUNTIME, runtime)
    gradients = runtime / "gradients.py"
    changed = gradients.read_text().replace(
        "return grad, vector_grads", "return grad * 2, vector_grads"
    )
    assert changed != gradients.read_text()
    reference = next(path for path in PROBLEMS if path.stem.startswith("65_"))
    digests = []
    for _ in range(2):
        text = emit.generate(reference, tmp_path / "solution.py")
        digests.append(re.search(r"^_DIGEST = '(\w+)'", text, re.MULTILINE)[1])
        monkeypatch.setattr(operator_layer, "RUNTIME", runtime)
        gradients.write_text(changed)
    assert digests[0] != digests[1]


def test_reference_and_solution_in_one_namespace(shelf):
    """The benchmark executes both in one dictionary, then calls the reference's get_inputs."""
    for solution in SOLUTIONS:
        problem = next(p for p in PROBLEMS if p.name == solution.name)
        shared = load_text(problem.read_text())
        before = {
            name: value for name, value in shared.items() if isinstance(value, int | float | tuple)
        }
        with shelf.build_folder():
            exec(compile(solution.read_text(), "solution", "exec"), shared)
        assert {name: shared[name] for name in before} == before
        assert shared["Model"] is not shared["ModelNew"]


@pytest.mark.parametrize("path", SOLUTIONS, ids=lambda path: path.stem)
def test_hashes_in_the_docstring(path, shelf):
    with shelf.build_folder():
        namespace = load_text(path.read_text())
    for name in ("CUDA_SOURCE", "CPU_SOURCE", "OPERATOR_SOURCE"):
        digest = hashlib.sha256(namespace[name].encode()).hexdigest()
        stated = re.search(rf"sha256 of {name}:\s+(\w+)", namespace["__doc__"])
        assert stated and stated[1] == digest
    assert re.search(
        r"python -m generator harness/problems/\S+ -o solutions/\S+", namespace["__doc__"]
    )


@pytest.mark.sweep
def test_processes_building_at_the_same_time(tmp_path):
    environment_ = {**os.environ, "TORCH_EXTENSIONS_DIR": str(tmp_path)}
    command = [sys.executable, "-c", LOAD, str(by_number("65"))]
    running = [
        subprocess.Popen(command, env=environment_, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for process in running:
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
    assert len(list(tmp_path.glob("tconv_*/*.so"))) == 1


@pytest.mark.sweep
def test_a_killed_build_does_not_block_the_next(built):
    """A build that dies leaves PyTorch's lock file behind, for which PyTorch itself would wait for
    ever.
    """
    (folder,) = built.glob("tconv_*")
    (library,) = folder.glob("*.so")
    library.unlink()  # as if the build had not come to its end
    (folder / "build.0").mkdir()
    for place in (folder, folder / "build.0"):
        (place / "lock").touch()
    load(built)
    assert library.is_file()


def test_a_cuda_tensor_without_cuda_kernels_is_an_error(shelf):
    """The operator's implementation for CUDA, called as the dispatcher would."""
    solution = shelf["65"].solution
    if solution["_can_build_cuda"]():
        pytest.skip("this machine builds the CUDA half")
    run = getattr(torch.ops, solution["_NAMESPACE"]).run.default
    x, weight = torch.empty(1, 2, 3, 3, device="meta"), torch.empty(2, 2, 1, 1, device="meta")
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
    with pytest.raises(RuntimeError, match="the CUDA kernels were not built"):
        run.redispatch(keys, x, weight, None, 1, 1, 0, 0, 0, 0, 1, 1, 1, True)


def damage(library: Path, how: str) -> None:
    content = library.read_bytes()
    if how == "truncated":
        library.write_bytes(content[: len(content) // 2])
    elif how == "changed":
        library.write_bytes(content[:4096] + bytes(64) + content[4160:])
    elif how == "empty":
        library.write_bytes(b"")
    else:
        library.with_name(library.name + ".sha256").unlink()


@pytest.mark.parametrize("how", swept(["changed", "truncated", "empty", "without digest"]))
def test_a_damaged_library_is_built_anew(built, how):
    (library,) = built.glob("tconv_*/*.so")
    whole = library.read_bytes()
    damage(library, how)
    load(built)
    assert len(library.read_bytes()) == len(whole)


def test_a_built_library_needs_neither_ninja_nor_a_writable_folder(built):
    """Root may write anywhere, so what would be written is looked for instead."""
    before = {path: path.stat().st_mtime_ns for path in built.rglob("*")}
    assert not list(built.rglob("build.*"))
    for path in (built, *before):
        path.chmod(0o555 if path.is_dir() else 0o444)
    load(built, PATH=str(built / "nothing"))
    assert {path: path.stat().st_mtime_ns for path in built.rglob("*")} == before
    for path in (built, *before):
        path.chmod(0o755)
