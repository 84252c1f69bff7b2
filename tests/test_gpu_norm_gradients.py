"""GroupNorm's gradients on a CUDA GPU: right beside ATen's, the same bits twice, any magnitude."""

import pytest
import torch

from tests.builds_ahead import NORM_GRADIENTS
from tests.gpu_tools import DTYPES, LAYOUTS, gradients_library
from tests.norm_gradient_tools import (
    CASES,
    CHAINS,
    arguments,
    check_norm,
    norm_case,
    norm_truth,
)
from tests.solution_tools import relative_error

pytestmark = pytest.mark.gpu
ALLOWED = {torch.float32: 2e-6, torch.float64: 1e-13, torch.float16: 1e-3, torch.bfloat16: 6e-3}
LARGE = [(8, 64, 8, (258, 258)), (64, 128, 8, (15, 15)), (2, 32, 1, (301, 77))]


@pytest.fixture(scope="module")
def backward(shelf):
    return gradients_library(shelf, NORM_GRADIENTS).backward.default


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", [*CASES, *LARGE], ids=str)
def test_right(backward, case, dtype):
    check_norm(backward, case, *norm_case(case, dtype, "cuda"), ALLOWED[dtype])


@pytest.mark.parametrize("chain", range(1, len(CHAINS)))
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("case", [*CASES, *LARGE], ids=str)
def test_through_element_wise_steps(backward, case, dtype, chain):
    given = norm_case(case, dtype, "cuda")
    check_norm(backward, case, *given, 2 * ALLOWED[dtype], chain=chain)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(backward, layout):
    grad, value, weight = norm_case(CASES[1], device="cuda")
    check_norm(backward, CASES[1], LAYOUTS[layout](grad), LAYOUTS[layout](value), weight, 2e-6)


@pytest.mark.parametrize("mean", [0.0, 30.0, 1e3])
@pytest.mark.parametrize("size", [1e-9, 1.0, 1e8])
@pytest.mark.parametrize("case", LARGE, ids=str)
def test_no_worse_than_aten(backward, case, size, mean):
    """At most twice ATen's error; where that is rounding's alone, units in the last place."""
    grad, value, weight = norm_case(case, device="cuda", mean=mean)
    grad = grad * size
    exact = norm_truth(case, grad, value, weight, 1e-5)
    ours = backward(*arguments(case, (grad, value, weight)))
    leaves = [t.clone().requires_grad_() for t in (value, weight, weight)]
    y = torch.nn.functional.group_norm(leaves[0], case[2], *leaves[1:], 1e-5)
    theirs = torch.autograd.grad(y, leaves, grad)
    for got, their, wanted in zip(ours[:3], theirs, exact[:3], strict=True):
        assert relative_error(got, wanted) <= max(2 * relative_error(their, wanted), 5e-7)


@pytest.mark.parametrize("case", LARGE, ids=str)
def test_two_runs_give_the_same_bits(backward, case):
    made = norm_case(case, device="cuda")
    first, again = (backward(*arguments(case, made, chain=2)) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
