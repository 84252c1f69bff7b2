"""The gradients through BatchNorm, activation, max-pool and GroupNorm on a CUDA GPU: right, the
same bits twice.
"""

import dataclasses

import pytest
import torch

from tests.builds_ahead import POOL_GRADIENTS
from tests.gpu_tools import DTYPES, gradients_library
from tests.pool_gradient_tools import CASES, PoolCase, random_case

pytestmark = pytest.mark.gpu
LARGE = [PoolCase(64, 128, 8, (34, 34)), PoolCase(8, 96, 3, (129, 200), mean=10.0)]


@pytest.fixture(scope="module")
def backward(shelf):
    return gradients_library(shelf, POOL_GRADIENTS).backward.default


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", [*CASES, *LARGE], ids=str)
def test_right(backward, case, dtype):
    case.check(backward, dtype, "cuda")


@pytest.mark.parametrize("first", range(0, 1000, 100))
def test_random_cases(backward, first):
    for seed in range(first, first + 100):
        random_case(seed).check(backward, torch.float64, "cuda")


@pytest.mark.parametrize("case", LARGE, ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_two_runs_give_the_same_bits(backward, case, training):
    case = dataclasses.replace(case, training=training)
    given = case.tensors(device="cuda")
    first, again = (case.kernels(backward, given) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
