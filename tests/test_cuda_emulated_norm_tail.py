"""GroupNorm and BatchNorm with steps behind them by the CUDA kernels, forward and backward, on the
CPU, thread by thread.
"""

import pytest
import torch

from tests.emulated_tools import needs_cuda_headers
from tests.norm_tail_tools import CASES, random_case
from tests.sweeps import swept
from tests.tail_tools import OF_NORMS

pytestmark = needs_cuda_headers


@pytest.fixture
def libraries(emulated_tail, emulated_tail_gradients):
    return emulated_tail, emulated_tail_gradients


@pytest.mark.parametrize("case", CASES, ids=str)
def test_right(libraries, case):
    forward, backward = libraries
    with forward.on(detect_races=True), backward.on(detect_races=True):
        case.check(*libraries, OF_NORMS)
        assert forward.races() == backward.races() == []


@pytest.mark.parametrize("first", swept(range(0, 200, 20), [0]))
def test_random_cases(libraries, first):
    forward, backward = libraries
    with forward.on(), backward.on():
        for seed in range(first, first + 20):
            random_case(seed).check(*libraries, OF_NORMS)


@pytest.mark.parametrize("case", [CASES[0], CASES[2], CASES[10]], ids=str)
def test_the_same_bits_in_any_order_of_warps(libraries, case):
    found = []
    for seed in (1, 2):
        with libraries[0].on(seed=seed), libraries[1].on(seed=seed):
            found.append(case.check(*libraries, OF_NORMS))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
