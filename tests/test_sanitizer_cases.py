"""The sanitizer's cases run every kernel there is."""

import itertools
import re

import pytest
import torch

from tests import sanitizer_cases
from tests.solution_tools import ROOT

_NESTED = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"  # three deep
_KERNEL = re.compile(rf"__global__\s+void\s+(?:__launch_bounds__{_NESTED}\s*)?(\w+)\s*\(")


def kernel_names() -> set[str]:
    sources = (ROOT / "kernels_src" / "cuda").glob("*.cuh")
    text = "\n".join(path.read_text() for path in sources)
    names = set(_KERNEL.findall(text))
    assert len(names) == len(re.findall(r"__global__\s", text)), "a kernel this does not recognise"
    assert all(name.endswith("_kernel") for name in names), names
    return names


def test_every_compiled_hopper_kernel_has_a_case():
    found = sanitizer_cases.hopper_shapes()
    assert found and [shape for shape, case in found.items() if case is None] == []


def test_every_kernel_in_every_dtype_and_mode():
    runs = list(sanitizer_cases.runs())
    assert len(set(map(str, runs))) == len(runs)
    low = (torch.float32, torch.float16, torch.bfloat16)
    have = {(run.kernel, run.dtype, run.problem) for run in runs}
    assert set(itertools.product(sanitizer_cases.KERNELS, low, ("69", "19", "11"))) <= have
    assert {("plain", torch.float64, "19"), ("plain", torch.float64, "11")} <= have


@pytest.mark.parametrize("problem", sanitizer_cases.NUMBERS)
def test_every_problem_has_a_solution(problem):
    assert "class ModelNew" in sanitizer_cases.solution_text(problem)


@pytest.mark.gpu
def test_every_cuda_kernel_is_launched(shelf):
    """By the profiler, on this device: the Hopper kernel only where there is one."""
    names, kernels = kernel_names(), sanitizer_cases.KERNELS
    if torch.cuda.get_device_capability() != (9, 0):
        names = {n for n in names if "hopper" not in n and "held" not in n}
        kernels = kernels[:3]
    runs = list(sanitizer_cases.runs(kernels))
    cuda = torch.profiler.ProfilerActivity.CUDA
    with torch.profiler.profile(activities=[cuda]) as profiler:
        wrong = [
            str(r) for r in runs if not sanitizer_cases.execute(r, lambda n: shelf[n].solution)
        ]
        torch.cuda.synchronize()
    assert not wrong
    seen = " ".join({event.name for event in profiler.events()})
    if "tconv" not in seen:
        pytest.skip("the profiler sees no kernel here")
    assert {name for name in names if name not in seen} == set()
