"""BatchNorm with the mean of each plane taken away, by the CUDA kernels, on the CPU, thread by
thread: what is not finite, what does not vary, and what is refused. Cases of numbers are in
test_cuda_emulated_norm_tail.py.
"""

import pytest
import torch
import torch.nn.functional as F

from tests.emulated_tools import needs_cuda_headers
from tests.norm_tail_tools import BATCH_RELU, CENTRED, CENTRED_CASES
from tests.tail_tools import OF_NORMS

pytestmark = needs_cuda_headers
NUMBER, EPS = OF_NORMS + CENTRED, 1e-5
NONE = None, None, None, 0.0, EPS  # no statistics are kept
INFINITY, NAN = float("inf"), float("nan")


@pytest.fixture
def library(emulated_tail, emulated_tail_gradients):
    """(value, weight, bias, grad) -> the result and the gradients of value, weight and bias."""

    def run(value, weight, bias, grad):
        with emulated_tail.on():
            found, maps = emulated_tail.centred_batch_norm(NUMBER, value, weight, bias, *NONE)
        given = grad, value, weight, bias, maps, EPS, 3
        with emulated_tail_gradients.on():
            grad_value, sums = emulated_tail_gradients.centred_batch_norm(NUMBER, *given)
        return found, grad_value, *sums

    return run


def exact(value, weight, bias, grad):
    """The same by PyTorch in float64."""
    leaves = [t.double().requires_grad_() for t in (value, weight, bias)]
    y = F.batch_norm(leaves[0], None, None, *leaves[1:], True, eps=EPS)
    y = y - y.mean([*range(2, y.dim())], keepdim=True)
    return y.detach(), *torch.autograd.grad(y, leaves, grad.double())


def agree(found, wanted, atol=1e-4):
    for mine, theirs in zip(found, wanted, strict=True):
        assert torch.equal(mine.isnan(), theirs.isnan())
        finite = theirs.isfinite()
        torch.testing.assert_close(mine[finite].double(), theirs[finite], rtol=1e-4, atol=atol)


@pytest.mark.parametrize("bad", [NAN, INFINITY, -INFINITY])
@pytest.mark.parametrize("of", ["value", "weight", "bias", "grad"])
def test_what_is_not_finite(library, of, bad):
    """As PyTorch has it: a bias and a weight that would cancel leave NaN, and all of a channel is
    NaN where one gradient is.
    """
    names = "value", "weight", "bias", "grad"
    given = dict(zip(names, CENTRED_CASES[0].tensors(), strict=True))
    given[of][(1, 2, 3, 4) if given[of].dim() > 1 else 2] = bad
    found, wanted = library(*given.values()), exact(*given.values())
    assert any(bool(t.isnan().any()) for t in wanted) and bool(found[0].isfinite().any())
    # BatchNorm's gradient of value is a sum with the mean's: of an infinite weight it is NaN.
    places = (0, 2, 3) if of == "weight" else range(4)
    agree([found[i] for i in places], [wanted[i] for i in places])


def test_an_infinite_value_where_every_value_is_above_the_mean(library):
    """Of an infinite weight a whole plane is infinite, and so is its mean."""
    value, weight, bias, grad = CENTRED_CASES[0].tensors()
    value[0] += 100
    weight[1] = INFINITY
    found, wanted = library(value, weight, bias, grad), exact(value, weight, bias, grad)
    assert bool(wanted[0][:, 1].isnan().all())
    agree(found[:1], wanted[:1])


def test_planes_that_do_not_vary(library):
    """Their result is nothing beside what they differ by, or where the channel is constant."""
    _, weight, bias, grad = CENTRED_CASES[2].tensors()
    value = torch.tensor([[0.1, 7.3], [1e4 / 3, 7.3]]).view(2, 2, 1, 1).repeat(1, 1, 40, 52)
    found, wanted = library(value, weight, bias, grad), exact(value, weight, bias, grad)
    assert float(found[0].abs().max()) < 1e-9
    assert bool((found[3] == 0).all())
    agree(found[1:], wanted[1:], atol=1e-6)


def test_planes_of_one_value(library):
    value, grad = torch.randn(2, 5, 3, 1)
    ones = torch.ones(3)
    y, grad_value, *sums = library(value, ones, ones, grad)
    assert all(bool((t == 0).all()) for t in (y, *sums))
    assert float(grad_value.abs().max()) < 1e-6


@pytest.mark.parametrize("mean", [1e3, 1e5])
def test_a_large_mean_costs_no_digits(library, mean):
    """Of few values in a plane, too, whose means fp32 would round to half a digit of theirs."""
    generator = torch.Generator().manual_seed(3)
    value = torch.randn(64, 2, 5, 7, generator=generator) + mean
    _, weight, bias, _ = CENTRED_CASES[2].tensors()
    grad = torch.randn(value.shape, generator=generator) + 1
    found, wanted = library(value, weight, bias, grad), exact(value, weight, bias, grad)
    for mine, theirs in zip(found[:2], wanted[:2], strict=True):
        assert float((mine.double() - theirs).abs().max()) < 2.0**-24 * 32
    torch.testing.assert_close(found[2].double(), wanted[2], rtol=1e-5, atol=1e-3)


def test_what_is_refused(emulated_tail, emulated_tail_gradients):
    forward, backward = emulated_tail, emulated_tail_gradients
    value, weight, bias, grad = CENTRED_CASES[0].tensors()
    maps, other = torch.zeros(6, 4), OF_NORMS + BATCH_RELU
    own, kind = forward.centred_batch_norm, "another kind|cannot run"
    wrong = [
        (lambda: own(other, value, weight, bias, *NONE), kind),
        (lambda: forward.batch_norm(NUMBER, value, weight, bias, *NONE), kind),
        (lambda: own(NUMBER, value.half(), None, None, *NONE), "value must be float32"),
        (lambda: own(NUMBER, value[:0], None, None, *NONE), "more than 1 value per channel"),
        (
            lambda: backward.centred_batch_norm(NUMBER, grad, value, None, None, maps[:3], EPS, 0),
            r"maps must be forward's, \(6, 4\)",
        ),
        (
            lambda: backward.batch_norm(NUMBER, grad, value, None, None, maps[:3], EPS, 0),
            kind,
        ),
    ]
    for call, message in wrong:
        with forward.on(), backward.on(), pytest.raises((RuntimeError, ValueError), match=message):
            call()
