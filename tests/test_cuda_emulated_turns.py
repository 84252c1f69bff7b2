"""The Hopper kernel in turns on the CPU, thread by thread: random layers of one pass of few taps,
right and without races.
"""

import random

import pytest
import torch

from tests.emulated_tools import forced, needs_cuda_headers
from tests.gpu_tools import LOW, tf32
from tests.solution_tools import Case, assert_within, conv_bound
from tests.sweeps import swept

pytestmark = needs_cuda_headers
IN_TURNS = "conv_transpose_hopper_turns_kernel"


def layer(rng: random.Random, dtype: torch.dtype) -> Case:
    """Of a width for which turns are as a rule the cheapest."""
    widths = [252, 253, 260, 276] if dtype == torch.float32 else [136, 137, 138, 140, 144]
    kernel = rng.choice([(3, 3), (3, 3), (3, 3), (3, 4), (2, 5), (4, 3)])
    groups = rng.choice([1, 1, 1, 2])
    dilation = rng.choice([(1, 1), (1, 1), (1, 1), (1, 2), (2, 1)])
    padding = [
        rng.randint(0, step * (size - 1)) for size, step in zip(kernel, dilation, strict=True)
    ]
    return Case(
        batch=rng.randint(1, 3),
        in_channels=groups * rng.choice([24, 40, 64, 64]),
        out_channels=groups * rng.choice([33, 64, 64]),
        size=(rng.randint(6, 14), rng.choice(widths)),
        kernel=kernel,
        padding=tuple(padding),
        dilation=dilation,
        groups=groups,
        bias=rng.random() < 0.5,
    )


def emulate(emulated, case: Case, operands, seed=0):
    """(output, launches in turns)"""
    with emulated.on(seed=seed, detect_races=True), tf32(True), forced("hopper"):
        y = emulated.operator(*operands, *case.parameters)
        launches = emulated.launches_of(IN_TURNS)
        assert emulated.races() == [], case
    return y, launches


@pytest.mark.parametrize("start", swept(range(0, 96, 12), (0,)))
def test_random_layers(emulated_turns, start):
    in_turns = dict.fromkeys((torch.float32, *LOW), 0)
    for seed in range(start, start + 12):
        dtype = (torch.float32, *LOW)[seed % 3]
        case = layer(random.Random(seed), dtype)
        operands = case.tensors(dtype, seed=seed)
        y, launches = emulate(emulated_turns, case, operands, seed)
        bound = conv_bound(case, *operands, dtype, tf32=dtype == torch.float32)
        assert_within(y, case.reference(*operands), bound)
        in_turns[dtype] += launches
    assert sum(in_turns.values()) >= 3, in_turns
    assert start > 0 or min(in_turns.values()) >= 1, in_turns
