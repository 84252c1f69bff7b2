"""Solution files as a benchmark uses them: executed from strings, several at once, under other
build folders.
"""

import hashlib
import os
import re
import subprocess
import sys
import time

import pytest
import torch

from tests.solution_tools import PROBLEMS, ROOT, environment, load_text

SOLUTIONS = sorted((ROOT / "solutions").glob("level*/*.py"))
LOAD = (
    "import sys; text = open(sys.argv[1]).read(); "
    "exec(compile(text, 'solution', 'exec'), {'__name__': 'solution'})"
)


def by_number(number):
    return next(path for path in SOLUTIONS if path.stem.startswith(f"{number}_"))


@pytest.mark.parametrize("number", ["65", "11"])
def test_two_build_folders_in_one_process(number, tmp_path):
    text = by_number(number).read_text()
    loaded = []
    for folder in ("first", "second", "second"):
        with environment(TORCH_EXTENSIONS_DIR=tmp_path / folder):
            loaded.append(load_text(text))
        built = list((tmp_path / folder).glob("tconv_*/*.so"))
        assert len(built) == 1
    assert "__file__" not in loaded[0]
    x = torch.rand(2, 64, 6, 6)
    outputs = []
    for namespace in loaded:
        torch.manual_seed(0)
        model = namespace["ModelNew"](*namespace["get_init_inputs"]())
        outputs.append(model(x))
    assert torch.equal(outputs[0], outputs[1]) and torch.equal(outputs[0], outputs[2])


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
    for name in ("CUDA_SOURCE", "CPU_SOURCE"):
        digest = hashlib.sha256(namespace[name].encode()).hexdigest()
        stated = re.search(rf"sha256 of {name}:\s+(\w+)", namespace["__doc__"])
        assert stated and stated[1] == digest
    assert re.search(
        r"python -m generator harness/problems/\S+ -o solutions/\S+", namespace["__doc__"]
    )


def test_cold_build_takes_at_most_ten_seconds_on_two_cores(tmp_path):
    """The smaller of wall time and processor time of the compilers: a busy machine is no fault."""
    for path in SOLUTIONS:
        before = os.times()
        started = time.monotonic()
        with environment(TORCH_EXTENSIONS_DIR=tmp_path):
            load_text(path.read_text())
        elapsed = time.monotonic() - started
        after = os.times()
        spent = after.children_user + after.children_system
        spent -= before.children_user + before.children_system
        assert 0 < min(elapsed, spent) <= 10, (path.name, elapsed, spent)


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


def test_a_killed_build_does_not_block_the_next(tmp_path):
    """A build that dies leaves PyTorch's lock file behind, for which PyTorch itself would wait for
    ever.
    """
    text = by_number("65").read_text()
    with environment(TORCH_EXTENSIONS_DIR=tmp_path):
        load_text(text)
    (folder,) = tmp_path.glob("tconv_*")
    (folder / "lock").touch()
    command = [sys.executable, "-c", LOAD, str(by_number("65"))]
    environment_ = {**os.environ, "TORCH_EXTENSIONS_DIR": str(tmp_path)}
    run = subprocess.run(command, env=environment_, timeout=120, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def test_a_cuda_tensor_without_cuda_kernels_is_an_error(shelf):
    solution = shelf["65"].solution
    if solution["_can_build_cuda"]():
        pytest.skip("this machine builds the CUDA half")
    library = type("Library", (), {"has_cuda": False})()
    with pytest.raises(RuntimeError, match="the CUDA kernels were not built"):
        solution["_launch"](library, None, torch.device("cuda", 0))


def test_structures_match_the_header(shelf, tmp_path):
    """sizeof and the last offsets of kernels_src/call.h, printed by a compiled program."""
    pattern = shelf["11"].solution
    conv, group = shelf["65"].solution, shelf["19"].solution
    structures = {
        "ConvOnlyCall": conv["_ConvOnlyCall"],
        "ConvGroupNormCall": group["_ConvGroupNormCall"],
        "ConvBatchNormPoolGroupNormCall": pattern["_ConvBatchNormPoolGroupNormCall"],
        "ConvCall": pattern["_ConvCall"],
        "BatchNormPoolArgs": pattern["_BatchNormPoolArgs"],
        "GroupNormArgs": pattern["_GroupNormArgs"],
        "ConvTransposeProblem": pattern["_Problem"],
    }
    lines = ["#include <cstddef>", "#include <cstdio>", '#include "call.h"', "int main() {"]
    expected = []
    for name, structure in structures.items():
        lines.append(f'std::printf("%zu\\n", sizeof(tconv::{name}));')
        expected.append(__import__("ctypes").sizeof(structure))
        for field in structure._fields_:
            lines.append(f'std::printf("%zu\\n", offsetof(tconv::{name}, {field[0]}));')
            expected.append(getattr(structure, field[0]).offset)
    source = tmp_path / "offsets.cpp"
    source.write_text("\n".join([*lines, "}"]))
    program = tmp_path / "offsets"
    subprocess.run(
        ["g++", "-std=c++17", "-I", ROOT / "kernels_src", source, "-o", program], check=True
    )
    output = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    assert [int(line) for line in output.split()] == expected
