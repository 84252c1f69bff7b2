"""Tails by the CUDA kernels, on the CPU, thread by thread."""

import types

import pytest
import torch

from tests.emulated_tools import needs_cuda_headers
from tests.sweeps import swept
from tests.tail_tools import CASES, GELU, OF_REFERENCE, TAILS, TailCase, number_of, random_case

pytestmark = needs_cuda_headers
NORM, SOFTMAX = number_of("kLayerNorm"), number_of("kSoftmax")
PLANE = number_of("kPlaneSoftmax")
AVERAGE, MAX = number_of("kAveragePool"), number_of("kMaxPool")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_right(emulated_tail, case):
    with emulated_tail.on(detect_races=True):
        case.check(emulated_tail)
        assert emulated_tail.races() == []
        assert emulated_tail.launches() == (2 if case.kind == "kPlaneSoftmax" else 1)


@pytest.mark.parametrize("first", swept(range(0, 500, 50), [0]))
def test_random_cases(emulated_tail, first):
    with emulated_tail.on():
        for seed in range(first, first + 50):
            random_case(seed).check(emulated_tail)


@pytest.mark.parametrize(
    "case",
    [
        TailCase(number_of("kLayerNorm", GELU), (2, 3, 90, 1024), row=1024),
        TailCase(number_of("kLayerNorm", GELU), (2, 3, 1071, 32), row=32),
        TailCase(number_of("kLayerNorm", GELU), (2, 3, 71, 129), row=129),
    ],
    ids=str,
)
def test_blocks_that_work_on_rows_again(emulated_tail, case):
    """More rows than the blocks of the emulated device's three processors hold at once."""
    with emulated_tail.on():
        case.check(emulated_tail)


@pytest.mark.parametrize(
    "case",
    [
        TailCase(NORM, (2, 3, 4, 64), row=64),
        TailCase(SOFTMAX, (2, 70, 5, 7)),
        TailCase(AVERAGE, (2, 3, 4, 6, 8), window=(2, 3, 2)),
    ],
    ids=str,
)
def test_the_same_bits_in_any_order_of_warps(emulated_tail, case):
    found = []
    for seed in (1, 2):
        with emulated_tail.on(seed=seed):
            found.append(case.check(emulated_tail))
    assert torch.equal(*found)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("row", [64, 33])
def test_what_is_not_finite_stays_in_its_row(emulated_tail, bad, row):
    case = TailCase(NORM, (2, 3, 4, row), row=row)
    value = case.value()
    value[1, 2, 1, 3] = bad
    with emulated_tail.on():
        found = case.call(emulated_tail, value)
    assert bool(found[1, 2, 1].isnan().all())
    found[1, 2, 1] = 0
    assert bool(found.isfinite().all())


@pytest.mark.parametrize("channels", [5, 40, 200])
def test_softmax_of_what_is_not_finite(emulated_tail, channels):
    """As PyTorch: NaN and Inf make NaN of their position, -Inf is 0 unless all are."""
    case = TailCase(SOFTMAX, (2, channels, 3, 7))
    value = case.value()
    value[0, 3, 1, 2] = float("nan")
    value[0, channels - 1, 2, 2] = float("inf")
    value[1, 1, 0, 5] = -float("inf")
    value[1, :, 2, 6] = -float("inf")
    with emulated_tail.on():
        found = case.call(emulated_tail, value)
    torch.testing.assert_close(found, value.softmax(1), equal_nan=True, rtol=1e-5, atol=1e-6)
    assert bool(found[0, :, 1, 2].isnan().all() and found[0, :, 2, 2].isnan().all())
    assert int(found.isnan().sum()) == 3 * channels and found[1, 1, 0, 5] == 0


@pytest.mark.parametrize("window", [(2, 2, 2), (1, 3, 2)], ids=str)
@pytest.mark.parametrize("number", [AVERAGE, MAX], ids=["average", "max"])
def test_pools_of_what_is_not_finite(emulated_tail, number, window):
    case = TailCase(number, (2, 3, 5, 7, 9), window=window)
    value = case.value()
    value[0, 0, 1, 2, 3] = float("nan")
    value[0, 0, 2, 2, 2] = float("nan")  # and behind it larger ones
    value[0, 0, 2, 2, 3] = float("inf")
    value[0, 1, :4] = -float("inf")
    value[1, 1, 1, 1, 1] = float("inf")
    value[1, 2, 4, 6, 8] = float("nan")  # of one window alone, or of none
    with emulated_tail.on():
        found = case.call(emulated_tail, value)
    pool = torch.nn.functional.max_pool3d if number == MAX else torch.nn.functional.avg_pool3d
    torch.testing.assert_close(found, pool(value, window), equal_nan=True, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("chunk", [0, 1])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_plane_softmax_of_what_is_not_finite(emulated_tail, bad, chunk):
    """In one chunk of two; a channel of nothing but -inf is NaN."""
    value = torch.randn(1, 3, 9000)
    value[0, 1, 8500 if chunk else 5] = bad
    value[0, 2] = -float("inf")
    with emulated_tail.on():
        found = emulated_tail.plane_softmax(PLANE, value)
    torch.testing.assert_close(found, value.softmax(2), equal_nan=True)
    value[0, 2, 8999 if chunk else 0] = bad
    with emulated_tail.on():
        found = emulated_tail.plane_softmax(PLANE, value)
    torch.testing.assert_close(found, value.softmax(2), equal_nan=True)


def test_tensors_that_are_not_contiguous(emulated_tail):
    for case in (
        TailCase(number_of("kLayerNorm", GELU), (2, 3, 4, 64), row=64),
        TailCase(SOFTMAX, (2, 5, 6, 7)),
        TailCase(MAX, (2, 3, 4, 6, 8)),
    ):
        value = case.value()
        with emulated_tail.on():
            plain = case.call(emulated_tail, value)
            found = case.call(emulated_tail, value.transpose(1, 3).contiguous().transpose(1, 3))
        assert torch.equal(found, plain) and found.is_contiguous()


def test_parameters_off_every_boundary(emulated_tail):
    case = TailCase(NORM, (2, 3, 4, 64), row=64)
    value, parameters = case.value(), case.parameters()
    shifted = [torch.cat([torch.zeros(1), t])[1:] for t in parameters]
    with emulated_tail.on():
        found = emulated_tail.layer_norm(NORM, value, *shifted, 1e-5, 64)
        assert torch.equal(found, case.call(emulated_tail, value))
        for weight, bias in ((parameters[0], None), (None, parameters[1])):
            found = emulated_tail.layer_norm(NORM, value, weight, bias, 1e-5, 64)
            exact = torch.nn.functional.layer_norm(value, (64,), weight, bias)
            torch.testing.assert_close(found, exact, rtol=1e-5, atol=1e-5)


VOLUMES = torch.zeros(2, 3, 4, 6, 8)
ONES = torch.ones(8)


@pytest.mark.parametrize(
    ("operator", "given", "said"),
    [
        ("layer_norm", (VOLUMES[0, 0, 0], None, None, 1e-5, 8), "value must have 3 dimensions or"),
        ("layer_norm", (VOLUMES, None, None, 1e-5, 5), r"row must divide the 192 .*, got 5"),
        ("layer_norm", (VOLUMES, None, None, 1e-5, 0), r"row must divide the 192 .*, got 0"),
        ("layer_norm", (VOLUMES, ONES[1:], None, 1e-5, 8), r"weight must have shape \(8,\)"),
        ("layer_norm", (VOLUMES, ONES, ONES.half(), 1e-5, 8), "bias must have the input's dtype"),
        ("layer_norm", (VOLUMES.double(), None, None, 1e-5, 8), "value must be float32, float16"),
        ("layer_norm", (torch.zeros(1, 1, 1028), None, None, 1e-5, 1028), "at most 1024, or 256"),
        ("layer_norm", (torch.zeros(1, 1, 257), None, None, 1e-5, 257), "at most 1024, or 256"),
        ("layer_norm", (VOLUMES, None, None, 1e-5, 8, ONES), r"operand must have shape \(3,\)"),
        ("softmax", (VOLUMES.int(),), "value must be float32, .* got torch.int32"),
        ("softmax", (torch.zeros(1, 257, 1),), "value must have at most 256 channels, got 257"),
        ("softmax", (VOLUMES, ONES[:3].half()), "a per-channel operand must have the input's"),
        ("pool", (VOLUMES[0], 2, 2, 2), "value must have 5 dimensions"),
        ("pool", (VOLUMES, 5, 2, 2), "window_d must be 1 to 4, .* got 5"),
        ("pool", (VOLUMES, 2, 0, 2), "window_h must be 1 to 6, .* got 0"),
        ("pool", (VOLUMES, 2, 2, 9), "window_w must be 1 to 8, .* got 9"),
    ],
)
def test_what_is_refused_is_named(emulated_tail, operator, given, said):
    numbers = {"layer_norm": NORM, "softmax": SOFTMAX, "pool": AVERAGE}
    with emulated_tail.on(), pytest.raises(RuntimeError, match=said):
        getattr(emulated_tail, operator)(numbers[operator], *given)
    assert emulated_tail.launches() == 0


def test_a_number_of_another_kind_computes_nothing(emulated_tail):
    operators = {"kLayerNorm": "layer_norm", "kSoftmax": "softmax"}
    operators["kPlaneSoftmax"] = "plane_softmax"
    given = {"layer_norm": (None, None, 1e-5, 8), "softmax": (), "plane_softmax": ()}
    given["pool"] = (2, 2, 2)
    for operator, rest in given.items():
        for number in (-1, *range(len(TAILS)), 99):
            there = 0 <= number < len(TAILS)
            if there and operators.get(TAILS[number][0], "pool") == operator:
                continue
            said = "tail of this number is of another kind" if there else "no tail .* this number"
            with emulated_tail.on(), pytest.raises(RuntimeError, match=said):
                getattr(emulated_tail, operator)(number, VOLUMES, *rest)
            assert emulated_tail.launches() == 0


def test_nothing_of_an_empty_batch(emulated_tail):
    none = VOLUMES[:0]
    with emulated_tail.on():
        assert emulated_tail.layer_norm(NORM, none, None, None, 1e-5, 8).shape == none.shape
        assert emulated_tail.softmax(SOFTMAX, none).shape == none.shape
        assert emulated_tail.plane_softmax(PLANE, none).shape == none.shape
        assert emulated_tail.pool(MAX, none, 2, 2, 2).shape == (0, 3, 2, 3, 4)
        assert emulated_tail.launches() == 0


def test_values_of_many_dimensions(emulated_tail):
    case = TailCase(number_of("kLayerNorm", GELU), (2, 3, 1, 2, 1, 2, 2, 8), row=32)
    with emulated_tail.on():
        case.check(emulated_tail)
        with pytest.raises(RuntimeError, match="a result of 17 dimensions, allowed are 16"):
            emulated_tail.softmax(SOFTMAX, VOLUMES.view(2, 3, 4, 6, 8, *[1] * 12))


@pytest.fixture
def model(shelf, emulated_tail, emulated_tail_gradients, monkeypatch):
    """One whose tails the kernels run on the CPU, and the reference's."""
    solution = shelf["normed_volumes"].solution

    def numbered(operator):
        def call(number, *rest):
            return operator(number + OF_REFERENCE, *rest)

        return types.SimpleNamespace(default=call)

    def library(emulated, ending=""):
        names = "layer_norm", "softmax", "plane_softmax", "pool"
        made = {f"{name}{ending}": numbered(getattr(emulated, name)) for name in names}
        return lambda: types.SimpleNamespace(**made)

    backward = library(emulated_tail_gradients, "_backward")
    monkeypatch.setitem(solution, "_tail_library", library(emulated_tail))
    monkeypatch.setitem(solution, "_tail_gradient_library", backward)
    monkeypatch.setitem(solution, "_tail_pays", lambda x, vectors: True)
    torch.manual_seed(0)
    return shelf["normed_volumes"].pair()


def test_a_model_of_all_kinds(model, emulated_tail):
    """Its steps, operands and numbers, as the generator wrote them."""
    reference, ours = model
    x = torch.randn(2, 3, 4, 6, 8)
    with emulated_tail.on(), torch.no_grad():
        found = ours(x)
        assert emulated_tail.launches() == 7
    wanted = reference.double()(x.double()).detach()
    assert float((found.double() - wanted).abs().max()) < 2e-6


def test_a_training_step_of_all_kinds(model, emulated_tail, emulated_tail_gradients):
    reference, ours = model
    x = torch.randn(2, 3, 4, 6, 8).requires_grad_()
    exact = x.detach().double().requires_grad_()
    with emulated_tail.on():
        y = ours(x)
        assert emulated_tail.launches() == 7
    grad = torch.randn(y.shape)
    with emulated_tail_gradients.on():
        found = torch.autograd.grad(y, [x, *ours.parameters()], grad)
        assert emulated_tail_gradients.launches() > 7
    exact_y = reference.double()(exact)
    wanted = torch.autograd.grad(exact_y, [exact, *reference.parameters()], grad.double())
    for mine, theirs in zip(found, wanted, strict=True):
        assert float((mine.double() - theirs).norm()) <= 1e-4 * float(theirs.norm())
