"""Gradients through tails by the CUDA kernels, on the CPU, thread by thread."""

import random

import pytest
import torch

from tests.emulated_tools import needs_cuda_headers
from tests.sweeps import swept
from tests.tail_gradient_tools import TailGradientCase
from tests.tail_tools import CASES, GELU, SIGMOID, SUM, TAILS, TailCase, number_of, random_case

pytestmark = needs_cuda_headers
NORM, SOFTMAX = number_of("kLayerNorm"), number_of("kSoftmax")
PLANE = number_of("kPlaneSoftmax")
AVERAGE, MAX = number_of("kAveragePool"), number_of("kMaxPool")


def wanted_of(tail: TailCase, pick) -> int:
    """Bits of sums that a tail has; `pick` chooses among all choices."""
    if tail.kind == "kLayerNorm":
        return pick([0, 1, 2, 3]) if tail.affine else 0
    if tail.steps.vectors == 0:
        return 0
    return pick([0, 1, 2] if tail.kind == "kSoftmax" else [0, 1, 2, 3])


@pytest.mark.parametrize("case", swept(CASES, range(0, len(CASES), 2)), ids=str)
def test_right(emulated_tail_gradients, case):
    with emulated_tail_gradients.on(detect_races=True):
        for pick in (min, max):
            TailGradientCase(case, wanted_of(case, pick)).check(emulated_tail_gradients)
        assert emulated_tail_gradients.races() == []


@pytest.mark.parametrize("first", swept(range(0, 400, 40), [0]))
def test_random_cases(emulated_tail_gradients, first):
    with emulated_tail_gradients.on():
        for seed in range(first, first + 40):
            rng, tail = random.Random(seed + 1), random_case(seed)
            shift = rng.choice([0, 0, 1, 3])
            if tail.row > 256:
                shift = 0
            case = TailGradientCase(tail, wanted_of(tail, rng.choice), shift)
            case.check(emulated_tail_gradients)


@pytest.mark.parametrize(
    "tail",
    [
        TailCase(number_of("kLayerNorm", GELU), (2, 3, 90, 1024), row=1024),
        TailCase(number_of("kLayerNorm", GELU), (2, 3, 1071, 32), row=32),
        TailCase(number_of("kLayerNorm", GELU), (2, 3, 571, 129), row=129),
        TailCase(number_of("kSoftmax", SUM), (2, 5, 90, 160)),
        TailCase(number_of("kSoftmax", SUM), (2, 130, 20, 60)),
    ],
    ids=str,
)
def test_blocks_that_work_again(emulated_tail_gradients, tail):
    """On more than the blocks of the emulated device's three processors hold at once."""
    wanted = 3 if tail.kind == "kLayerNorm" else 1
    with emulated_tail_gradients.on():
        TailGradientCase(tail, wanted).check(emulated_tail_gradients)


@pytest.mark.parametrize(
    "case",
    [
        TailGradientCase(TailCase(NORM, (2, 3, 40, 64), row=64), 3),
        TailGradientCase(TailCase(number_of("kSoftmax", SIGMOID), (2, 70, 5, 7)), 1),
        TailGradientCase(TailCase(number_of("kPlaneSoftmax", SIGMOID), (2, 3, 9000)), 3),
        TailGradientCase(TailCase(number_of("kAveragePool", SUM), (2, 3, 4, 16, 18)), 3),
    ],
    ids=str,
)
def test_the_same_bits_in_any_order_of_warps(emulated_tail_gradients, case):
    found = []
    for seed in (1, 2):
        with emulated_tail_gradients.on(seed=seed):
            found.append(case.check(emulated_tail_gradients))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize(
    "tail",
    [
        TailCase(NORM, (2, 3, 4, 64), row=64),
        TailCase(NORM, (2, 3, 4, 33), row=33),
        TailCase(SOFTMAX, (2, 5, 4, 7)),
        TailCase(SOFTMAX, (2, 40, 4, 7)),
        TailCase(AVERAGE, (2, 3, 4, 6, 8)),
    ],
    ids=str,
)
@pytest.mark.parametrize("of", ["value", "grad"])
def test_what_is_not_finite_stays_where_pytorch_has_it(emulated_tail_gradients, tail, bad, of):
    case = TailGradientCase(tail)
    value = tail.value()
    grad = case.grad(value)
    {"value": value, "grad": grad}[of][1, 2, 1, 2] = bad
    exact, _ = case.truth(value, grad)
    with emulated_tail_gradients.on():
        found, _ = case.call(emulated_tail_gradients, value, grad)
    finite = exact.isfinite()  # NaN or Inf elsewhere: PyTorch's own kernels differ in which
    assert torch.equal(found.isfinite(), finite)
    torch.testing.assert_close(found[finite], exact[finite].float(), rtol=1e-4, atol=1e-5)


def test_layer_norm_s_gradients_add_up_to_zero(emulated_tail_gradients):
    """Also where the mean is large beside the deviation: what is added ahead of the norm has no
    gradient but this sum.
    """
    generator = torch.Generator().manual_seed(3)
    value = 256 + 0.06 * torch.randn(2, 4, 128, 64, generator=generator)
    grad = torch.randn(value.shape, generator=generator)
    exact, _ = TailGradientCase(TailCase(NORM, value.shape, row=64)).truth(value, grad)
    with emulated_tail_gradients.on():
        found, _ = emulated_tail_gradients.layer_norm(NORM, grad, value, None, None, 1e-5, 64, 0)
    noise = 2.0**-24 * exact.abs().amax() * exact.numel() ** 0.5
    assert abs(float(found.double().sum())) <= 8 * noise


@pytest.mark.parametrize("window", [(2, 2, 2), (1, 2, 2), (1, 3, 2)], ids=str)
def test_the_largest_value_of_a_window_takes_its_gradient(emulated_tail_gradients, window):
    """Of several the first, of NaN the last, as PyTorch's forward finds it."""
    case = TailGradientCase(TailCase(MAX, (2, 3, 5, 7, 9), window=window))
    value = case.tail.value().round()  # many are equal
    value[0, 0, 1, 2, 3] = float("nan")
    value[0, 0, 0, 2, 2:4] = float("nan")
    value[0, 0, 2, 2, 3] = float("inf")
    value[0, 1, :4] = -float("inf")
    value[1, 2, 4, 6, 8] = float("nan")  # of one window alone, or of none
    grad = case.grad(value)
    exact, _ = case.truth(value, grad)
    with emulated_tail_gradients.on():
        found, _ = case.call(emulated_tail_gradients, value, grad)
    assert torch.equal(found, exact.float())


@pytest.mark.parametrize("chunk", [0, 1])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_plane_softmax_of_what_is_not_finite(emulated_tail_gradients, bad, chunk):
    """In one chunk of two; a channel of nothing but -inf is NaN."""
    value = torch.randn(1, 3, 9000)
    value[0, 1, 8500 if chunk else 5] = bad
    value[0, 2] = -float("inf")
    leaf, grad = value.double().requires_grad_(), torch.randn(value.shape)
    (exact,) = torch.autograd.grad(leaf.softmax(2), leaf, grad.double())
    with emulated_tail_gradients.on():
        found, _ = emulated_tail_gradients.plane_softmax(PLANE, grad, value, 0)
    torch.testing.assert_close(found, exact.float(), equal_nan=True, rtol=1e-4, atol=1e-7)


def test_tensors_that_are_not_contiguous(emulated_tail_gradients):
    for tail in (
        TailCase(number_of("kLayerNorm", GELU), (2, 3, 4, 64), row=64),
        TailCase(SOFTMAX, (2, 5, 6, 7)),
        TailCase(MAX, (2, 3, 4, 6, 8)),
    ):
        case = TailGradientCase(tail)
        value = tail.value()
        grad = case.grad(value)
        strided = [t.transpose(1, 3).contiguous().transpose(1, 3) for t in (value, grad)]
        with emulated_tail_gradients.on():
            plain, _ = case.call(emulated_tail_gradients, value, grad)
            found, _ = case.call(emulated_tail_gradients, *strided)
            expanded, _ = case.call(emulated_tail_gradients, value, grad[:1, :1].expand_as(grad))
            again, _ = case.call(
                emulated_tail_gradients, value, grad[:1, :1].expand_as(grad).contiguous()
            )
        assert torch.equal(found, plain) and found.is_contiguous() and torch.equal(expanded, again)


def test_sums_of_what_has_no_gradient_are_zeros(emulated_tail_gradients):
    """An operand's that the steps do not have."""
    for number, shape in ((SOFTMAX, (2, 5, 6, 7)), (PLANE, (2, 5, 60)), (MAX, (2, 3, 4, 6, 8))):
        case = TailGradientCase(TailCase(number, shape), 2)
        value = case.tail.value()
        with emulated_tail_gradients.on():
            _, sums = case.call(emulated_tail_gradients, value, case.grad(value))
        assert sums.shape == (2, shape[1]) and not sums[1].any()


def test_what_is_refused(emulated_tail_gradients):
    value = torch.randn(2, 3, 4, 6, 8)
    of = emulated_tail_gradients
    wrong = [
        (lambda: of.softmax(SOFTMAX, value[:1], value, 0), "grad must have the shape"),
        (lambda: of.softmax(SOFTMAX, value.half(), value, 0), "grad must have the input's dtype"),
        (lambda: of.softmax(SOFTMAX, value, value, 3), "one bit at most, got 3"),
        (lambda: of.softmax(SOFTMAX, value, value, 16), "wanted must be 0 to 15, got 16"),
        (lambda: of.layer_norm(NORM, value, value, None, None, 1e-5, 8, 4), "must be 0 to 3"),
        (lambda: of.layer_norm(NORM, value, value, None, None, 1e-5, 7, 0), "row must divide"),
        (lambda: of.pool(MAX, value, value, 2, 2, 2, 0), "grad must have the shape"),
        (lambda: of.pool(MAX, value, value, 5, 2, 2, 0), "window_d must be 1 to 4"),
        (lambda: of.softmax(SOFTMAX, value[:0], value[:0], 0), "must not be empty"),
        (lambda: of.softmax(MAX, value, value, 0), "of another kind|cannot run"),
        (lambda: of.softmax(len(TAILS) + 99, value, value, 0), "has this number|cannot run"),
    ]
    for call, message in wrong:
        with emulated_tail_gradients.on(), pytest.raises(RuntimeError, match=message):
            call()
