"""Pairs of output rows in one tile on the CPU, thread by thread: random layers of stride one with
few output channels, of two and three dimensions, right and without races.
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
PAIRED = 5  # launches: weights of pairs, their tiles, the convolution, two of the strict kernel


def image(rng: random.Random) -> Case:
    kernel = rng.randint(2, 5), rng.randint(1, 4)
    dilation = 1, rng.choice([1, 1, 2])
    return Case(
        batch=rng.randint(2, 4),
        in_channels=8 * rng.randint(1, 5),
        out_channels=rng.randint(1, 32),
        size=(rng.randint(9, 25), rng.choice([7, 8, 12, 33, 40])),
        kernel=kernel,
        padding=(rng.randint(0, kernel[0] - 1), rng.randint(0, 1) * (kernel[1] > 1)),
        dilation=dilation,
        bias=rng.random() < 0.5,
    )


def of_volume(rng: random.Random) -> Layer:
    kernel = rng.randint(1, 3), rng.randint(2, 4), rng.randint(1, 3)
    depth = rng.choice([1, 1, 2, 3])
    return Layer(
        seed=rng.randrange(1000),
        batch=rng.randint(1, 2),
        channels=8 * rng.randint(1, 4),
        out_channels=rng.randint(1, 32),
        size=(rng.randint(1, 4), rng.randint(9, 25), rng.choice([7, 8, 21])),
        kernel=kernel,
        stride=(depth, 1, 1),
        padding=(0, rng.randint(0, kernel[1] - 1), 0),
        output_padding=(rng.randrange(depth), 0, 0),
        dilation=(1, 1, 1),
        groups=1,
        bias=rng.random() < 0.5,
        layout=rng.choice(["contiguous", "channels_last"]),
    )


def emulate(emulated, case: Case, operands, seed=0):
    """(output, whether rows were paired)"""
    with emulated.on(seed=seed, detect_races=True), tf32(True), forced("hopper"):
        y = emulated.operator(*operands, *case.parameters)
        paired = emulated.launches() == PAIRED
        assert emulated.races() == [], case
    return y, paired


@pytest.mark.parametrize("start", swept(range(0, 160, 40), (0,)))
def test_random_images(emulated_volumes, start):
    paired = 0
    for seed in range(start, start + 40):
        case = image(random.Random(seed))
        if min(case.output_size) < 1:
            continue
        dtype = (torch.float32, *LOW)[seed % 3]
        operands = case.tensors(dtype, seed=seed)
        y, pairs = emulate(emulated_volumes, case, operands, seed)
        paired += pairs
        rounded = dtype == torch.float32
        assert_within(
            y, case.reference(*operands), conv_bound(case, *operands, dtype, tf32=rounded)
        )
    assert paired >= 10


@pytest.mark.parametrize("start", swept(range(0, 160, 40), (0,)))
def test_random_volumes(emulated_volumes, start):
    computed = paired = 0
    for seed in range(start, start + 40):
        case = of_volume(random.Random(seed))
        dtype = (torch.float32, *LOW)[seed % 3]
        launches = forced_volume_launches(emulated_volumes, case, in_place, seed, dtype)
        computed += launches is not None
        # Of the only residue: a pair's weights more than without.
        paired += case.stride[0] == 1 and launches == PAIRED - 1
    assert computed >= 10 and paired >= 3


# What gives a pair fewer rows of taps begins with the input's first row, or above it.
@pytest.mark.parametrize("padding", range(4))
@pytest.mark.parametrize("kernel", [2, 3, 4, 5])
def test_every_padding(emulated_volumes, kernel, padding):
    if padding >= kernel:
        pytest.skip("padding as wide as the kernel is not paired")
    case = Case(in_channels=32, out_channels=24, kernel=(kernel, 3), padding=(padding, 1))
    case = dataclasses.replace(case, batch=3, size=(23, 40))
    operands = case.tensors()
    y, paired = emulate(emulated_volumes, case, operands)
    assert paired
    assert_within(
        y, case.reference(*operands), conv_bound(case, *operands, torch.float32, tf32=True)
    )


@pytest.mark.parametrize("dtype", [torch.float32, *LOW])
@pytest.mark.parametrize("operand", ["x", "weight"])
def test_infinity_meets_no_absent_tap(emulated_volumes, operand, dtype):
    """Absent taps are zeros, of which infinity would make NaN: the strict kernel, in 16 bits the
    portable one, computes again.
    """
    case = Case(in_channels=32, out_channels=24, kernel=(3, 3), size=(23, 40), batch=3)
    x, weight, bias = case.tensors(dtype)
    if operand == "x":
        x[0, 3, 4, 5] = float("inf")
    else:
        weight[1, 2, 0, 0] = float("inf")
    y, paired = emulate(emulated_volumes, case, (x, weight, bias))
    with emulated_volumes.on(), tf32(False), forced("portable"):
        strict = emulated_volumes.operator(x, weight, bias, *case.parameters)
    assert paired and not bool(y.isfinite().all())
    if operand == "x" or dtype == torch.float32:
        torch.testing.assert_close(y, strict, rtol=0, atol=0, equal_nan=True)
    else:  # of weights nothing is computed again: no more and no fewer than in the portable kernel
        assert torch.equal(y.isnan(), strict.isnan()) and torch.equal(y.isinf(), strict.isinf())


def test_values_of_any_size_are_answered(emulated_volumes):
    """Beyond containers, the strict kernel's answer."""
    case = Case(in_channels=32, out_channels=24, kernel=(3, 3), size=(23, 40), batch=3)
    x, *rest = case.tensors()
    operands = (x * 1e5, *rest)
    y, paired = emulate(emulated_volumes, case, operands)
    assert paired
    assert_within(y, case.reference(*operands), conv_bound(case, *operands, torch.float32))
