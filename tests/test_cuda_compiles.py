"""Every CUDA source compiles for every architecture that solutions ask for, without register
spills.
"""

import re
import shutil
import subprocess

import pytest
from torch.utils.cpp_extension import COMMON_NVCC_FLAGS

from generator.emit import generate
from generator.runtime.build import _CUDA_FLAGS
from generator.sources import KERNELS
from tests.solution_tools import PROBLEMS

ARCHITECTURES = [flag for flag in _CUDA_FLAGS if flag.startswith("-gencode=")]
# 65 and 69 have the same CUDA source; the other three hold every entry file.
PATHS = [path for path in PROBLEMS if not path.stem.startswith("69_")]


def spills(log: str) -> list[str]:
    """The functions whose registers spill, from the output of ptxas -v."""
    found, function = [], "?"
    for line in log.splitlines():
        named = re.search(r"Function properties for (\S+)", line)
        if named:
            function = named[1]
        counted = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line)
        if counted and (counted[1], counted[2]) != ("0", "0"):
            found.append(f"{function}: {line.strip()}")
    return found


def test_every_entry_is_compiled():
    entries = {path.name for path in (KERNELS / "cuda").glob("entry_*.cu")}
    sources = "".join(generate(path, path) for path in PATHS)
    assert entries and all(f"// ---- kernels_src/cuda/{name}" in sources for name in entries)


def test_the_parser_sees_spills():
    log = (
        "ptxas info    : Function properties for kernel_a\n"
        "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Function properties for kernel_b\n"
        "    16 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads\n"
    )
    assert [line.partition(":")[0] for line in spills(log)] == ["kernel_b"]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_cuda_source_compiles_without_spills(path, tmp_path):
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc on this machine")
    text = generate(path, path)
    source = tmp_path / "cuda.cu"
    source.write_text(re.search(r'CUDA_SOURCE = r"""(.*?)"""', text, re.DOTALL)[1])
    flags = [flag for flag in _CUDA_FLAGS if flag not in ARCHITECTURES]
    command = [nvcc, *COMMON_NVCC_FLAGS, *flags, *ARCHITECTURES, "-Xcompiler=-fPIC", "-Xptxas=-v"]
    run = subprocess.run(
        [*command, "-c", source, "-o", tmp_path / "cuda.o"], capture_output=True, text=True
    )
    log = run.stdout + run.stderr
    assert run.returncode == 0, log[-4000:]
    for architecture in ("sm_80", "sm_90a"):
        assert f"for '{architecture}'" in log
    assert spills(log) == []
    # ptxas says so where wgmma instructions wait for each other because of the code around them.
    assert "wgmma.mma_async instructions are serialized" not in log
