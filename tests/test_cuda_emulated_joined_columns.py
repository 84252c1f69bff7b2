"""Columns of a stride as channels on the CPU, thread by thread: random layers whose columns lie
two to eight apart, of two and three dimensions, right and without races.
"""

import dataclasses
import random

import pytest
import torch

from tests.emulated_tools import forced, forced_volume_launches, needs_cuda_headers
from tests.gpu_tools import LOW, tf32
from tests.random_dimensions import Layer
from tests.solution_tools import Case, assert_within, conv_bound
from tests.sweeps import swept
from tests.test_cuda_emulated_volumes import in_place

pytestmark = needs_cuda_headers
JOINED = (
    4  # launches: weights, the convolution, two of the strict kernel; the portable kernel: one more
)


def image(rng: random.Random) -> Case:
    stride = rng.choice([1, 1, 2, 3]), rng.choice([2, 2, rng.randint(3, 8)])
    missing = 0 if stride[1] > 2 else rng.choice([0, 1])
    kernel = rng.randint(1, 4), stride[1] * rng.randint(1, 3) - missing
    groups = rng.choice([1, 1, 2])
    return Case(
        batch=rng.randint(1, 3),
        in_channels=groups * rng.randint(16, 40),
        out_channels=groups * rng.randint(1, 20),
        size=(rng.randint(1, 9), rng.choice([1, 5, 8, 33, 70])),
        kernel=kernel,
        stride=stride,
        padding=(rng.randint(0, kernel[0] - 1), rng.randint(0, kernel[1] - 1)),
        output_padding=(rng.randrange(stride[0]), rng.randrange(stride[1])),
        dilation=(rng.choice([1, 2]), 1),
        groups=groups,
        bias=rng.random() < 0.5,
    )


def of_volume(rng: random.Random) -> Layer:
    stride = rng.choice([1, 2]), rng.choice([1, 2]), rng.choice([2, 2, rng.randint(3, 8)])
    kernel = rng.randint(1, 3), rng.randint(1, 3), stride[2] * rng.randint(1, 2)
    if stride[2] == 2:
        kernel = *kernel[:2], kernel[2] - rng.choice([0, 1])
    return Layer(
        seed=rng.randrange(1000),
        batch=rng.randint(1, 2),
        channels=8 * rng.randint(2, 4),
        out_channels=rng.randint(1, 20),
        size=(rng.randint(1, 4), rng.randint(1, 6), rng.choice([4, 7, 21])),
        kernel=kernel,
        stride=stride,
        padding=tuple(rng.randint(0, size - 1) for size in kernel),
        output_padding=tuple(rng.randrange(step) for step in stride),
        dilation=(1, 1, 1),
        groups=1,
        bias=rng.random() < 0.5,
        layout=rng.choice(["contiguous", "channels_last"]),
    )


def emulate(emulated, case: Case, operands, kernel="hopper", seed=0):
    """(output, launches)"""
    with emulated.on(seed=seed, detect_races=True), tf32(True), forced(kernel):
        y = emulated.operator(*operands, *case.parameters)
        launches = emulated.launches()
        assert emulated.races() == [], case
    return y, launches


@pytest.mark.parametrize("start", swept(range(0, 160, 40), (0,)))
def test_random_images(emulated_volumes, start):
    computed = 0
    for seed in range(start, start + 40):
        dtype = (torch.float32, torch.float32, *LOW)[seed % 4]
        case = image(random.Random(seed))
        if min(case.output_size) < 1:
            continue
        operands = case.tensors(dtype, seed=seed)
        try:
            y, _ = emulate(emulated_volumes, case, operands, seed=seed)
        except RuntimeError as error:
            assert "no output has a tap" in str(error), case
            assert not bool(case.reference(*[t.abs() for t in operands[:2]], None).any()), case
            continue
        rounded = dtype == torch.float32
        assert_within(
            y, case.reference(*operands), conv_bound(case, *operands, dtype, tf32=rounded)
        )
        computed += 1
    assert computed >= 30


@pytest.mark.parametrize("start", swept(range(0, 160, 40), (0,)))
def test_random_volumes(emulated_volumes, start):
    computed = 0
    for seed in range(start, start + 40):
        case = of_volume(random.Random(seed))
        dtype = (torch.float32, *LOW)[seed % 3]
        launches = forced_volume_launches(emulated_volumes, case, in_place, seed, dtype)
        computed += launches is not None
    assert computed >= 10


@pytest.mark.parametrize("stride", [3, 4, 5, 8])
def test_every_padding(emulated_volumes, stride):
    """What padding crops lies within a stride, or is whole columns of it."""
    for padding in range(2 * stride):
        case = Case(in_channels=32, out_channels=5, kernel=(1, 2 * stride), stride=(1, stride))
        case = dataclasses.replace(case, batch=2, size=(1, 37), padding=(0, padding))
        operands = case.tensors()
        y, _ = emulate(emulated_volumes, case, operands)
        assert_within(
            y, case.reference(*operands), conv_bound(case, *operands, torch.float32, tf32=True)
        )


VOCODER = Case(in_channels=64, out_channels=40, kernel=(1, 16), stride=(1, 8), padding=(0, 4))


def test_chosen_by_the_rule(emulated_volumes):
    """By itself; not where the kernel is no whole number of strides wide, or taps lie apart. Of two
    columns some may have fewer taps.
    """
    whole = dataclasses.replace(VOCODER, batch=2, size=(1, 90))
    for case in (whole, dataclasses.replace(whole, kernel=(1, 3), stride=(1, 2), out_channels=32)):
        operands = case.tensors()
        y, launches = emulate(emulated_volumes, case, operands, "auto")
        assert launches == JOINED
        assert_within(
            y, case.reference(*operands), conv_bound(case, *operands, torch.float32, tf32=True)
        )
    for other in ({"kernel": (1, 15)}, {"dilation": (1, 3)}):
        other = dataclasses.replace(whole, **other)
        assert emulate(emulated_volumes, other, other.tensors(), "auto")[1] > JOINED


@pytest.mark.parametrize("dtype", [torch.float32, *LOW])
@pytest.mark.parametrize("operand", ["x", "weight"])
def test_infinity_meets_no_absent_tap(emulated_volumes, operand, dtype):
    """All columns of a stride have as many taps; slots without a column are not stored."""
    case = dataclasses.replace(
        VOCODER, batch=2, size=(3, 30), kernel=(2, 10), stride=(1, 5), padding=(0, 3)
    )
    x, weight, bias = case.tensors(dtype)
    (x if operand == "x" else weight)[0, 3, 1, 5] = float("inf")
    y, _ = emulate(emulated_volumes, case, (x, weight, bias))
    # Beyond the input's edges both kernels multiply zeros.
    other, _ = emulate(emulated_volumes, case, (x, weight, bias), "portable")
    assert torch.equal(y.isfinite(), other.isfinite()) and not bool(y.isfinite().all())
    if operand == "x":
        assert torch.equal(y.isfinite(), case.reference(x, weight, bias).isfinite())


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize("operand", ["x", "weight"])
@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("dtype", [torch.float32, *LOW])
def test_no_number_meets_a_weight_that_is_absent(emulated_volumes, dtype, kernel, operand, value):
    """Columns with fewer taps than others have weights of zero, which the strict kernel, in 16 bits
    the portable one, has not.
    """
    case = Case(in_channels=32, out_channels=5, kernel=(2, kernel), stride=(1, 2))
    case = dataclasses.replace(case, batch=2, size=(3, 30), padding=(0, 1))
    x, weight, bias = case.tensors(dtype)
    (x if operand == "x" else weight)[0, 3, 1, 2] = value
    y, launches = emulate(emulated_volumes, case, (x, weight, bias))
    assert launches == JOINED
    found = y.isfinite()
    strict, _ = emulate(emulated_volumes, case, (x, weight, bias), "portable")
    assert torch.equal(found, strict.isfinite()) and not bool(found.all()) and bool(found.any())
    if operand == "x":
        assert torch.equal(found, case.reference(x, weight, bias).isfinite())


def test_values_of_any_size_are_answered(emulated_volumes):
    """Beyond containers, the strict kernel's answer."""
    case = dataclasses.replace(VOCODER, batch=2, size=(1, 50))
    x, *rest = case.tensors()
    operands = (x * 1e5, *rest)
    y, launches = emulate(emulated_volumes, case, operands, "auto")
    assert launches == JOINED
    assert_within(y, case.reference(*operands), conv_bound(case, *operands, torch.float32))
