"""GroupNorm's gradients by the CUDA kernels, on the CPU, thread by thread: right for every size and
layout, whatever the mean, the same bits in any order of warps, without races.
"""

import pytest
import torch

from tests.emulated_tools import needs_cuda_headers
from tests.gpu_tools import LAYOUTS
from tests.norm_gradient_tools import CASES, CHAINS, arguments, chain_vectors, check_norm, norm_case
from tests.sweeps import swept

pytestmark = needs_cuda_headers
_GELU = 1  # its number in the tests' library
ALLOWED = {torch.float32: 2e-6, torch.float64: 1e-13, torch.float16: 1e-3, torch.bfloat16: 6e-3}


@pytest.mark.parametrize("dtype", ALLOWED, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_right(emulated_norm_gradients, case, dtype):
    weighted = case[1] != 12
    grad, value, weight = norm_case(case, dtype, weighted=weighted)
    with emulated_norm_gradients.on(detect_races=True):
        check_norm(emulated_norm_gradients.backward, case, grad, value, weight, ALLOWED[dtype])
        assert emulated_norm_gradients.races() == []
        assert emulated_norm_gradients.launches() > 0


@pytest.mark.parametrize("chain", range(1, len(CHAINS)))
@pytest.mark.parametrize("dtype", ALLOWED, ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_through_element_wise_steps(emulated_norm_gradients, case, dtype, chain):
    """Where groups of two values are nearly equal behind a chain, its digits are the value's."""
    grad, value, weight = norm_case(case, dtype)
    with emulated_norm_gradients.on(detect_races=True):
        check_norm(
            emulated_norm_gradients.backward,
            case,
            grad,
            value,
            weight,
            2 * ALLOWED[dtype],
            chain=chain,
        )
        assert emulated_norm_gradients.races() == []


@pytest.mark.parametrize("dtype", ALLOWED, ids=str)
@pytest.mark.parametrize("chain", range(len(CHAINS)))
def test_steps_with_nothing_normalised(emulated_norm_gradients, chain, dtype):
    """The gradient of the chain alone, of its operands, and its sums."""
    case = CASES[3]
    grad, value, _ = norm_case(case, dtype)
    vectors = [v.double() for v in chain_vectors(chain, case[1], dtype)]
    leaves = [t.requires_grad_() for t in (value.double(), *vectors)]
    y = CHAINS[chain][1](leaves[0], *(vector.view(-1, 1, 1) for vector in leaves[1:]))
    exact = torch.autograd.grad(y, leaves, grad.double())
    needs = False, False, True
    with emulated_norm_gradients.on(detect_races=True):
        given = arguments(case, (grad, value, None), needs, chain)
        found = emulated_norm_gradients.backward(*given[:3], 0, *given[4:])
        assert emulated_norm_gradients.races() == []
    size = float(exact[0].norm())
    for got, wanted in (
        (found[0], exact[0]),
        (found[3], exact[0].sum((0, 2, 3))),
        *zip(found[4], exact[1:], strict=True),
    ):
        assert float((got.double() - wanted).norm()) <= 2 * ALLOWED[dtype] * size


@pytest.mark.parametrize("mean", [30.0, 1e3])
def test_a_large_mean(emulated_norm_gradients, mean):
    """What is lost is what rounding the values loses: a deviation of 1 beside 1000."""
    grad, value, weight = norm_case(CASES[3], mean=mean)
    with emulated_norm_gradients.on():
        check_norm(emulated_norm_gradients.backward, CASES[3], grad, value, weight, 2e-6)


@pytest.mark.parametrize("needs", [(True, False, True), (False, True, False), (False,) * 3])
def test_only_what_is_asked_for(emulated_norm_gradients, needs):
    grad, value, weight = norm_case(CASES[0])
    with emulated_norm_gradients.on():
        check_norm(
            emulated_norm_gradients.backward, CASES[0], grad, value, weight, 2e-6, needs=needs
        )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(emulated_norm_gradients, layout):
    case = CASES[1]
    grad, value, weight = norm_case(case)
    with emulated_norm_gradients.on():
        check_norm(
            emulated_norm_gradients.backward,
            case,
            LAYOUTS[layout](grad),
            LAYOUTS[layout](value),
            weight,
            2e-6,
        )


@pytest.mark.parametrize("case", [CASES[0], CASES[3], CASES[4]], ids=str)
def test_the_same_bits_in_any_order_of_warps(emulated_norm_gradients, case):
    grad, value, weight = norm_case(case)
    found = []
    for seed in (1, 2):
        with emulated_norm_gradients.on(seed=seed):
            found.append(
                emulated_norm_gradients.backward(*arguments(case, (grad, value, weight), chain=2))
            )
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_not_a_number_stays_in_its_group(emulated_norm_gradients):
    grad, value, weight = norm_case(CASES[0])
    value[1, 5, 2, 3] = float("nan")  # of channels 4 to 7
    with emulated_norm_gradients.on():
        found, *_ = emulated_norm_gradients.backward(*arguments(CASES[0], (grad, value, weight)))
    bad = found.isnan()
    assert bad[1, 4:8].all() and bad.sum() == bad[1, 4:8].numel()


def test_what_is_refused_is_named(emulated_norm_gradients):
    grad, value, weight = norm_case(CASES[0])
    backward = emulated_norm_gradients.backward
    for given, said in (
        ((grad[..., 1:], value, weight, 3), r"grad must have the shape of value"),
        ((grad, value, weight, 5), r"num_groups must divide 12 channels or be 0, got 5"),
        ((grad[0], value[0], weight, 3), r"value must have 4 dimensions"),
        ((grad.double(), value, weight, 3), r"grad must have the input's dtype"),
        ((grad, value, weight, 0), r"where nothing is normalised there is no weight"),
    ):
        with pytest.raises(RuntimeError, match=said):
            backward(*given, 1e-5, *[None] * 4, True, True, True, False, 0)


@pytest.mark.parametrize("dtype", swept(ALLOWED), ids=str)
@pytest.mark.parametrize("chain", [0, 2])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_zeros_behind_each_row(emulated_norm_gradients, case, chain, dtype):
    """Whole vectors of columns for kernels that slide over the gradient: the same values, and
    zeros, whatever the memory held.
    """
    given = norm_case(case, dtype)
    with emulated_norm_gradients.on(detect_races=True):
        flat, *sums, _ = emulated_norm_gradients.backward(*arguments(case, given, chain=chain))
        garbage = torch.full((4 * flat.numel(),), float("nan"), dtype=dtype)
        del garbage
        padded, *others, _ = emulated_norm_gradients.backward(
            *arguments(case, given, chain=chain, pad_rows=True)
        )
        assert emulated_norm_gradients.races() == []
    width = flat.shape[3]
    assert padded.shape == (*flat.shape[:3], (width + 3) // 4 * 4)
    assert torch.equal(padded[..., :width], flat) and not bool(padded[..., width:].any())
    assert all(torch.equal(a, b) for a, b in zip(sums, others, strict=True))
