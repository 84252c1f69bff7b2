"""The gathered kernel, and output channels in parts, on the CPU, thread by thread: random layers of
many channels over few pixels, right and without races.
"""

import dataclasses
import random

import pytest
import torch

from tests.chain_gradient_tools import case_of, random_axis
from tests.emulated_tools import forced, needs_cuda_headers
from tests.gpu_tools import LOW, tf32
from tests.gradient_tools import call, check, output_gradient, truth
from tests.solution_tools import Case, assert_within, conv_bound
from tests.sweeps import swept

pytestmark = needs_cuda_headers
# Launches: pixels, weights, the convolution, two of the strict kernel; without pixels otherwise.
GATHERED = {torch.float32: 5, torch.float16: 3, torch.bfloat16: 3}


def layer(rng: random.Random) -> Case:
    groups = rng.choice((1, 1, 1, 2))
    axes = [random_axis(rng, 1, 6), random_axis(rng, 1, 12)]
    return case_of(
        axes,
        batch=rng.randint(1, 5),
        in_channels=groups * rng.choice((20, 64, 72, 130, 200)),
        out_channels=groups * rng.choice((1, 40, 128, 130, 256)),
        groups=groups,
        bias=rng.random() < 0.5,
    )


def emulate(emulated, case: Case, operands, seed=0):
    """(output, whether the gathered kernel computed it)"""
    with emulated.on(seed=seed, detect_races=True), tf32(True), forced("hopper"):
        y = emulated.operator(*operands, *case.parameters)
        gathered = emulated.launches() == GATHERED[operands[0].dtype]
        assert emulated.races() == [], case
    return y, gathered


@pytest.mark.parametrize("start", swept(range(0, 160, 40), (0,)))
def test_random_layers(emulated_many_channels, start):
    gathered = 0
    for seed in range(start, start + 40):
        case = layer(random.Random(seed))
        if min(case.output_size) < 1:
            continue
        dtype = random.Random(seed).choice((torch.float32, torch.float32, *LOW))
        operands = case.tensors(dtype, seed=seed)
        try:
            y, by_it = emulate(emulated_many_channels, case, operands, seed)
        except RuntimeError as error:
            assert "no output has a tap" in str(error)
            continue
        gathered += by_it
        bound = conv_bound(case, *operands, dtype, tf32=dtype == torch.float32)
        assert_within(y, case.reference(*operands), bound)
    assert gathered >= 8


DEEP = Case(
    batch=3,
    in_channels=130,
    out_channels=192,
    size=(4, 5),
    kernel=(4, 3),
    stride=(2, 1),
    padding=(1, 1),
)


@pytest.mark.parametrize("layout", ["channels_last", "padded"])
def test_any_strides_of_the_input(emulated_many_channels, layout):
    x, *rest = DEEP.tensors()
    if layout == "channels_last":
        x = x.to(memory_format=torch.channels_last)
    else:
        x = torch.nn.functional.pad(x, (1, 2, 1, 0))[:, :, 1:, 1:-2]
    y, gathered = emulate(emulated_many_channels, DEEP, (x, *rest))
    assert gathered
    bound = conv_bound(DEEP, x, *rest, torch.float32, tf32=True)
    assert_within(y, DEEP.reference(x, *rest), bound)


@pytest.mark.parametrize("size", [1e5, 1e-12])
def test_values_of_any_size_are_answered(emulated_many_channels, size):
    """Beyond containers, the strict kernel's answer."""
    x, *rest = DEEP.tensors()
    operands = (x * size, *rest)
    y, gathered = emulate(emulated_many_channels, DEEP, operands)
    assert gathered
    assert_within(y, DEEP.reference(*operands), conv_bound(DEEP, *operands, torch.float32))


@pytest.mark.parametrize("all_small", [False, True])
def test_small_channels_beside_larger_ones_raise_no_guard(emulated_many_channels, all_small):
    """The strict kernel's answer, which is closer, is for those alone beside which there are
    none.
    """
    x, *rest = DEEP.tensors()
    x[:, : 130 if all_small else 40] *= 1e-8
    y, gathered = emulate(emulated_many_channels, DEEP, (x, *rest[:1], None))
    exact = DEEP.reference(x.double(), rest[0].double(), None)
    error = float((y - exact).norm() / exact.norm())
    assert gathered and (error < 2e-6 if all_small else 1e-5 < error < 1e-3)


@pytest.mark.parametrize("size", swept([1e-6, 1.0, 1e6]))
def test_many_pixels_are_scaled_by_a_sample_of_them(emulated_many_channels, size):
    """As after a softmax: few values near one, all others far below."""
    case = Case(in_channels=16, out_channels=8, size=(256, 256), kernel=(1, 1), bias=False)
    x, weight, _ = case.tensors()
    x = torch.where(torch.rand(x.shape) < 0.001, x.abs().clamp(max=1), x * 1e-4) * size
    with emulated_many_channels.on(detect_races=True), tf32(True), forced("hopper"):
        y = emulated_many_channels.operator(x, weight, None, *case.parameters)
        assert emulated_many_channels.races() == []
    exact = case.reference(x, weight, None)
    assert_within(y, exact, conv_bound(case, x, weight, None, torch.float32, tf32=True))
    error = float((y - exact).norm() / exact.norm())
    assert error > 1e-5  # of TF32: no strict kernel ran


@pytest.mark.parametrize("operand", ["x", "weight"])
def test_infinity_is_where_its_products_are(emulated_many_channels, operand):
    x, weight, bias = DEEP.tensors()
    (x if operand == "x" else weight)[1, 3, 2, 1] = float("inf")
    y, gathered = emulate(emulated_many_channels, DEEP, (x, weight, bias))
    with emulated_many_channels.on(), tf32(False), forced("portable"):
        strict = emulated_many_channels.operator(x, weight, bias, *DEEP.parameters)
    assert gathered and not bool(y.isfinite().all())
    torch.testing.assert_close(y, strict, rtol=0, atol=0, equal_nan=True)


def test_the_same_bits_in_any_order_of_warps(emulated_many_channels):
    operands = DEEP.tensors()
    found = [emulate(emulated_many_channels, DEEP, operands, seed)[0] for seed in (1, 2)]
    assert torch.equal(*found)


def test_tiles_of_many_pixels(emulated_many_channels):
    """Of 256, where those of 128 are more than the processors are."""
    case = Case(
        batch=80, in_channels=128, out_channels=256, size=(3, 3), kernel=(2, 2), stride=(2, 2)
    )
    operands = case.tensors()
    y, gathered = emulate(emulated_many_channels, case, operands)
    assert gathered
    bound = conv_bound(case, *operands, torch.float32, tf32=True)
    assert_within(y, case.reference(*operands), bound)


def test_many_pixels_are_not_gathered(emulated_many_channels):
    """A line of them is read once for all taps."""
    case = dataclasses.replace(DEEP, batch=1, in_channels=16, out_channels=64, size=(60, 130))
    operands = case.tensors()
    y, gathered = emulate(emulated_many_channels, case, operands)
    assert not gathered
    bound = conv_bound(case, *operands, torch.float32, tf32=True)
    assert_within(y, case.reference(*operands), bound)


# ---- Gradients: x's is a convolution of the output's gradient, or of its planes ----


@pytest.mark.parametrize("start", swept(range(0, 40, 10), (0,)))
def test_gradients_of_random_layers(emulated_many_channels_gradients, start):
    library, computed = emulated_many_channels_gradients, 0
    for seed in range(start, start + 10):
        case = layer(random.Random(f"gradients {seed}"))
        if min(case.output_size) < 1:
            continue
        dtype = random.Random(seed).choice((torch.float32, torch.float32, *LOW))
        x, weight, _ = case.tensors(dtype, seed=seed)
        grad = output_gradient(case, dtype)
        with library.on(seed=seed, detect_races=True), forced("hopper"):
            try:
                check(library.backward, case, grad, x, weight, True)
            except RuntimeError as error:
                assert "cannot run this layer" in str(error)
                continue
            assert library.races() == [], case
        computed += 1
    assert computed >= 4


SHALLOW = Case(
    batch=1,
    in_channels=384,
    out_channels=72,
    size=(2, 3),
    kernel=(4, 4),
    stride=(2, 2),
    padding=(1, 1),
)


@pytest.mark.parametrize("factor", [1e-9, 1.0, 1e9])
def test_gradients_of_any_magnitude(emulated_many_channels_gradients, emulated_gradients, factor):
    """By the gathered kernel: another number of launches than without it."""
    case = SHALLOW
    x, weight, _ = case.tensors()
    grad, launches = output_gradient(case, torch.float32) * factor, []
    for library in (emulated_gradients, emulated_many_channels_gradients):
        with library.on(seed=1, detect_races=True), forced("hopper"):
            found = call(library.backward, case, grad, x, weight, True)
            launches.append(library.launches())
            assert library.races() == []
        for got, wanted in zip(found, truth(case, grad, x, weight), strict=True):
            assert float((got.double() - wanted).norm()) <= 2e-3 * float(wanted.norm())
    assert launches[0] != launches[1]


@pytest.mark.sweep
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_gradients_are_not_finite_where_their_products_are(emulated_many_channels_gradients, value):
    x, weight, _ = SHALLOW.tensors()
    grad, found = output_gradient(SHALLOW, torch.float32), []
    grad[0, 3, 2, 1] = value
    for kernel in ("hopper", "plain"):
        with emulated_many_channels_gradients.on(), forced(kernel):
            found.append(
                call(emulated_many_channels_gradients.backward, SHALLOW, grad, x, weight, True)
            )
    for got, wanted in zip(*found, strict=True):
        assert torch.equal(got.isfinite(), wanted.isfinite())
        assert torch.equal(got.isnan(), wanted.isnan())
