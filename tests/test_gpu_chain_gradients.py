"""Gradients through a convolution and a chain behind it by one operator, on a CUDA GPU: right in
every dtype, whether formed as they are packed or first, the same bits each time.
"""

from dataclasses import replace

import pytest
import torch

from tests.builds_ahead import CHAINED_GRADIENTS, SLICED_GRADIENTS
from tests.chain_gradient_tools import (
    ALL,
    ALLOWED,
    FORMED_FIRST,
    PACKED,
    STRIDE_ONE,
    call,
    check,
    given_value,
    num_groups_of,
    tensors_of,
    truth,
    without_tensors,
)
from tests.gpu_tools import gradients_library, settings
from tests.norm_gradient_tools import CHAINS

pytestmark = pytest.mark.gpu
CASES = {**PACKED, **FORMED_FIRST}


@pytest.fixture(scope="module")
def chain_backward(shelf):
    return without_tensors(gradients_library(shelf, CHAINED_GRADIENTS).chain_backward.default)


@pytest.fixture(scope="module")
def sliced_backward(shelf):
    """The same, in slices of few images."""
    return gradients_library(shelf, SLICED_GRADIENTS).chain_backward.default


@pytest.mark.parametrize("batch", [2, 3, 7])
@pytest.mark.parametrize("chain", range(len(CHAINS)))
@pytest.mark.parametrize("name", STRIDE_ONE)
def test_slices(sliced_backward, name, chain, batch):
    case = replace(PACKED[name], batch=batch)
    for num_groups in (0, num_groups_of(case)):
        given = tensors_of(case, chain, num_groups, device="cuda")
        exact = truth(case, given, chain, num_groups)
        found = call(sliced_backward, case, given, chain, num_groups)
        check(found, exact, num_groups, ALLOWED[torch.float32])
        again = call(sliced_backward, case, given, chain, num_groups)
        assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))


@pytest.mark.parametrize(("of", "factor"), [("x", 1e-36), ("grad", 1e9), ("weight", 1e-36)])
@pytest.mark.parametrize("sample", [0, 1, 2])
def test_slices_that_containers_cannot_hold(sliced_backward, of, factor, sample):
    case = replace(PACKED["whole"], batch=3)
    given = tensors_of(case, 1, 0, device="cuda")
    given[of][sample] *= factor
    exact, _ = truth(case, given, 1, 0)
    found = call(sliced_backward, case, given, 1, 0)
    for got, wanted in zip(found[:2], exact[:2], strict=True):
        assert float((got.double() - wanted).norm()) <= 2e-3 * float(wanted.norm())


@pytest.mark.parametrize("normed", [True, False], ids=["norm", "chain"])
@pytest.mark.parametrize("chain", range(len(CHAINS)))
@pytest.mark.parametrize("dtype", ALLOWED, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_right(chain_backward, name, dtype, chain, normed):
    case = CASES[name]
    num_groups = num_groups_of(case) if normed else 0
    given = tensors_of(case, chain, num_groups, dtype, "cuda")
    exact = truth(case, given, chain, num_groups)
    for allow_tf32 in settings(dtype):
        for needs in (ALL, (True, False, True), (False, True, True)):
            args = case, given, chain, num_groups, allow_tf32, needs
            found = call(chain_backward, *args)
            check(found, exact, num_groups, ALLOWED[dtype], needs)
            again = call(chain_backward, *args)
            assert all(torch.equal(a, b) for a, b in zip(found, again, strict=True))


@pytest.mark.parametrize("dtype", ALLOWED, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_a_given_value_is_read_in_the_place_of_the_convolutions_output(chain_backward, name, dtype):
    case = CASES[name]
    given = tensors_of(case, 1, 0, dtype, "cuda")
    value, exact = given_value(case, given)
    kept = value.clone()
    for allow_tf32 in settings(dtype):
        for needs in (ALL, (True, False, True), (False, True, True)):
            found = call(chain_backward, case, given, 1, 0, allow_tf32, needs, value=value)
            check(found, exact, 0, ALLOWED[dtype], needs)
            assert torch.equal(value, kept)
