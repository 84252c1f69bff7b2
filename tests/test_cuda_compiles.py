"""Every CUDA source compiles for every architecture that solutions ask for, without register
spills; Hopper's kernels multiply by wgmma, and what the source has side by side stays so.
"""

import re
import shutil
import subprocess

import pytest

from generator.sources import KERNELS
from tests.builds_ahead import (
    BATCH_NORM,
    CHAIN_GRADIENTS,
    EXTREMA_BEHIND,
    FEW_CHANNELS_ALONE,
    GRADIENTS,
    GROUP_NORM,
    HOPPER_PARTS,
    LONG_TAIL_GRADIENTS,
    LONG_TAILS,
    LONG_VOLUME_CHAINS,
    LONGER_CHAINS,
    NORM_GRADIENTS,
    POOL_GRADIENTS,
    RESIDUAL_GRADIENTS,
    RESIDUAL_JOIN,
    VOLUME_NORM_GRADIENTS,
    cuda_source_of,
    run_nvcc,
)
from tests.operator_cases import CASES
from tests.operator_library import cuda_source
from tests.solution_tools import PROBLEMS, REFERENCES
from tests.sweeps import swept

# 65 and 69 have the same CUDA source; the other three hold every entry file.
PATHS = [path for path in PROBLEMS if not path.stem.startswith("69_")]
PATHS += LONGER_CHAINS
PATHS += [REFERENCES / "volume_only.py", REFERENCES / "old_weight_norm.py"]  # pairs of rows: both
LIBRARIES = [GRADIENTS, NORM_GRADIENTS, POOL_GRADIENTS, CHAIN_GRADIENTS, LONG_VOLUME_CHAINS]
LIBRARIES += [BATCH_NORM, GROUP_NORM, RESIDUAL_GRADIENTS, RESIDUAL_JOIN, LONG_TAILS]
LIBRARIES += [LONG_TAIL_GRADIENTS, FEW_CHANNELS_ALONE, *HOPPER_PARTS, EXTREMA_BEHIND]
LIBRARIES += [VOLUME_NORM_GRADIENTS]
PATHS += LIBRARIES
FEWEST = [NORM_GRADIENTS]  # outside of a sweep


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
    sources = "".join(cuda_source_of(path) for path in PATHS)
    assert entries and all(f"// ---- kernels_src/cuda/{name}" in sources for name in entries)


def test_the_parser_sees_spills():
    log = (
        "ptxas info    : Function properties for kernel_a\n"
        "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Function properties for kernel_b\n"
        "    16 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads\n"
    )
    assert [line.partition(":")[0] for line in spills(log)] == ["kernel_b"]


def kernels_with(instruction: str, sass: str) -> dict[str, bool]:
    """For each function of a disassembly whether it has that instruction."""
    found = {}
    for part in sass.split("Function : ")[1:]:
        name, _, code = part.partition("\n")
        found[name.strip()] = re.search(rf"\b{instruction}\b", code) is not None
    return found


def test_the_disassembly_is_read():
    line = "        /*0a10*/                   {};  /* 0x0 */\n"
    sass = "".join(
        f"\t\tFunction : {name}\n{line.format(code)}"
        for name, code in (("kernel_a", "HGMMA.64x8x16.F32 R4, gdesc[UR4]"), ("kernel_b", "NOP"))
    )
    assert kernels_with("HGMMA", sass) == {"kernel_a": True, "kernel_b": False}


def blocks_with_stores_and_chain(code: str) -> int:
    """How many basic blocks that end in an exit that is never taken both store and compute."""
    parts = re.split(r"@!?P\d\s+EXIT\b", code)[:-1]
    return sum("STG" in part and "MUFU" in part for part in parts)


def test_blocks_are_counted():
    ends = "@!P5  EXIT ;"
    assert blocks_with_stores_and_chain(f"MUFU STG {ends} STG {ends} STG MUFU {ends} STG MUFU") == 2


@pytest.mark.sweep
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on this machine")
def test_every_functor_compiles_without_spills(tmp_path):
    """A kernel for each case of every element-wise operator, in fp32 and fp64."""
    source = tmp_path / "functors.cu"
    source.write_text(cuda_source([[case.step] for case in CASES]))
    _, run = run_nvcc(source, f"-I{KERNELS}")
    log = run.stdout + run.stderr
    assert run.returncode == 0, log[-4000:]
    made = re.findall(r"Compiling entry function '\S*apply_case\S*' for '(\w+)'", log)
    assert set(made) == {"sm_80", "sm_90a"} and len(made) == 2 * 2 * len(CASES)
    assert spills(log) == []


@pytest.fixture(
    scope="module", params=swept(PATHS, FEWEST.__contains__), ids=lambda path: path.stem
)
def compiled(request, builds_ahead):
    """The kernels of a solution's CUDA source, compiled, and what the compiler said."""
    if request.param not in builds_ahead.compiled:
        pytest.skip("no nvcc on this machine")
    target, run = builds_ahead.compiled[request.param].result()
    log = run.stdout + run.stderr
    assert run.returncode == 0, log[-4000:]
    return target, log


def test_cuda_source_compiles_without_spills(compiled):
    _, log = compiled
    for architecture in ("sm_80", "sm_90a"):
        assert f"for '{architecture}'" in log
    assert spills(log) == []
    # ptxas says so where wgmma instructions wait for each other because of the code around them.
    assert "wgmma.mma_async instructions are serialized" not in log


@pytest.fixture(scope="module")
def disassembly(compiled):
    """Of a solution's kernels for sm_90a."""
    cuobjdump = shutil.which("cuobjdump")
    if cuobjdump is None:
        pytest.skip("no cuobjdump on this machine")
    run = subprocess.run(
        [cuobjdump, "-sass", "-arch", "sm_90a", compiled[0]], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_hopper_kernels_multiply_by_wgmma(disassembly):
    hopper = {
        name: has
        for name, has in kernels_with("HGMMA", disassembly).items()
        if re.search(
            "(conv_transpose_hopper|conv_group_norm_held|weight_gradient_hopper)_kernel", name
        )
    }
    assert hopper and all(hopper.values()), hopper


def test_held_outputs_are_stored_beside_the_chain(disassembly):
    """A row of stores with each fragment, which ptxas would gather behind all fragments."""
    functions = disassembly.split("Function : ")[1:]
    held = [part for part in functions if "conv_group_norm_held_kernel" in part[:99]]
    if not held:
        pytest.skip("a solution without that kernel")
    for part in held:  # 22 fragments of a segment's 176 columns, and what they differ from
        assert blocks_with_stores_and_chain(part) >= 23, part[:99]
