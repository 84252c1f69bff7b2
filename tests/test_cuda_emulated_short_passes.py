"""Columns two apart on the CPU, thread by thread: passes of few taps, and outputs that leave from
registers, right and without races.
"""

import random

import pytest
import torch

from tests.chain_gradient_tools import case_of, random_axis
from tests.emulated_tools import forced, needs_cuda_headers
from tests.gpu_tools import LOW, tf32
from tests.solution_tools import Case, assert_within, conv_bound
from tests.sweeps import swept

pytestmark = needs_cuda_headers


def layer(rng: random.Random) -> Case:
    groups = rng.choice((1, 1, 1, 2))
    rows, columns = random_axis(rng, 1, 7), random_axis(rng, 2, 33)
    size, kernel, _, padding, *_ = columns
    columns = size, max(kernel, 2 * padding), 2, padding, rng.randint(0, 1), 1
    return case_of(
        [rows, columns],
        batch=rng.randint(1, 4),
        in_channels=groups * rng.choice((8, 16, 40, 64, 72, 130)),
        out_channels=groups * rng.choice((16, 24, 64, 76, 128)),
        groups=groups,
        bias=rng.random() < 0.5,
    )


@pytest.mark.parametrize("start", swept(range(0, 160, 40), (0,)))
def test_random_layers(emulated_many_channels, start):
    computed = set()
    for seed in range(start, start + 40):
        rng = random.Random(f"short {seed}")
        case = layer(rng)
        if min(case.output_size) < 1:
            continue
        dtype = rng.choice((torch.float32, torch.float32, *LOW))
        operands = case.tensors(dtype, seed=seed)
        try:
            with emulated_many_channels.on(seed=seed, detect_races=True), tf32(True):
                with forced("hopper"):
                    y = emulated_many_channels.operator(*operands, *case.parameters)
                assert emulated_many_channels.races() == [], case
        except RuntimeError as error:
            assert "no output has a tap" in str(error)
            continue
        bound = conv_bound(case, *operands, dtype, tf32=dtype == torch.float32)
        assert_within(y, case.reference(*operands), bound)
        computed.add(case.output_size[1] % 4)
    assert computed == {0, 1, 2, 3}
