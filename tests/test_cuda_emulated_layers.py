"""Small random layers through the CUDA kernels on the CPU, thread by thread: right, within shared
memory, and without races where a kernel has asynchronous copies.
"""

import dataclasses

import pytest

from tests.emulated_tools import forced, needs_cuda_headers
from tests.layer_errors import errors_of
from tests.random_layers import random_layers
from tests.sweeps import swept

pytestmark = needs_cuda_headers

# How many of a seed's layers: the portable kernel's take longest. It computes them all but fp64,
# the Hopper kernel about a third.
COUNTS = {"plain": 60, "direct": 30, "portable": 30, "hopper": 40, "auto": 20}


@pytest.mark.parametrize("seed", swept([1, 2]))
@pytest.mark.parametrize("kernel", COUNTS)
def test_random_layers(emulated_conv, kernel, seed):
    wrong, computed = [], 0
    for layer in random_layers(seed, COUNTS[kernel], "small"):
        layer = dataclasses.replace(layer, gradients=False)  # PyTorch's own
        races = kernel == "hopper"
        try:
            with emulated_conv.on(seed=layer.index, detect_races=races), forced(kernel):
                errors = errors_of(emulated_conv.operator, layer, rounds=True, compare=False)
                found = errors.failures() + emulated_conv.races()
        except RuntimeError as error:
            refused = "forced by TCONV_KERNEL" in str(error) and kernel not in ("plain", "auto")
            found = [] if refused else [str(error)]
            computed -= refused
        computed += 1
        wrong += [f"(seed {seed}, index {layer.index}) {layer}: {what}" for what in found[:1]]
    assert wrong == []
    assert computed >= COUNTS[kernel] // 4
