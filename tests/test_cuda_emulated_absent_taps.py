"""Gradients of layers with a stride, both from one packing of the output's gradient, where each
class of taps has whole blocks of channels: what a class lacks of the longest one's taps is not
multiplied, and even and odd columns of a stride of two are packed at once. On the CPU, thread by
thread, without races.
"""

import dataclasses
import random

import pytest
import torch

from tests.cuda_emulator import emulator
from tests.emulated_tools import forced, needs_cuda_headers
from tests.gradient_tools import DISTRIBUTIONS, check, output_gradient
from tests.random_dimensions import volume
from tests.solution_tools import Case
from tests.sweeps import swept
from tests.test_cuda_emulated_volume_gradients import LAYOUTS, operands
from tests.test_cuda_emulated_volume_gradients import check as check_volume

pytestmark = needs_cuda_headers
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
LAYERS = 6
BOTH = (True, True, False)


def random_image(seed: int) -> Case:
    rng = random.Random(f"absent taps {seed}")
    groups = rng.choice((1, 1, 1, 2))
    stride = rng.choice(((2, 2), (2, 2), (1, 2), (2, 1), (3, 2), (3, 3)))
    return Case(
        batch=rng.choice((1, 2, 3)),
        in_channels=groups * rng.choice((8, 24, 40, 72)),
        out_channels=groups * rng.choice((64, 64, 128)),
        size=(rng.randint(2, 6), rng.choice((rng.randint(3, 30), rng.randint(31, 90)))),
        kernel=(rng.choice((3, 3, 4, 5)), rng.choice((3, 3, 4, 5))),
        stride=stride,
        padding=(rng.randint(0, 2), rng.randint(0, 2)),
        dilation=(rng.choice((1, 1, 3)), 1),
        groups=groups,
    )


def random_volume(seed: int):
    """Small, with whole blocks of output channels."""
    rng = random.Random(f"absent taps of volumes {seed}")
    case = volume(seed)
    return dataclasses.replace(
        case,
        batch=case.batch or 1,
        channels=case.groups * rng.choice((8, 16, 48)),
        out_channels=case.groups * rng.choice((64, 64, 128)),
        size=(rng.randint(1, 3), rng.randint(2, 4), rng.choice((rng.randint(3, 20), 70))),
        kernel=tuple(rng.choice((2, 3, 3, 4)) for _ in range(3)),
        stride=(rng.choice((1, 2, 2, 3)), rng.choice((1, 2)), rng.choice((2, 2, 1, 3))),
        padding=tuple(rng.randint(0, 1) for _ in range(3)),
        output_padding=(0, 0, 0),
        dilation=(1, 1, 1),
    )


@pytest.mark.parametrize("first", swept(range(0, 10 * LAYERS, LAYERS), (0,).__contains__))
def test_random_layers(emulated_chained_gradients, first):
    library = emulated_chained_gradients
    for seed in range(first, first + LAYERS):
        case, dtype = random_image(seed), DTYPES[seed % 3]
        x, weight, _ = case.tensors(dtype)
        grad = output_gradient(case, dtype)
        with library.on(seed=seed, detect_races=True), forced("hopper"):
            check(library.backward, case, grad, x, weight, True, BOTH)
            assert library.races() == [], case


@pytest.mark.parametrize("first", swept(range(0, 10 * LAYERS, LAYERS), (0,).__contains__))
def test_random_volumes(emulated_volume_gradients, first):
    library, served = emulated_volume_gradients, 0
    for seed in range(first, first + LAYERS):
        case, dtype = random_volume(seed), DTYPES[seed % 3]
        made = operands(case, dtype)
        if made is None:  # no outputs
            continue
        x, weight, grad = made
        grad = list(LAYOUTS.values())[seed % len(LAYOUTS)](grad)
        with library.on(seed=seed, detect_races=True), forced("hopper"):
            served += check_volume(library, "both", case, x, weight, grad)
            assert library.races() == [], case
    assert served > LAYERS / 3


# Whose blocks of channels are in the window at once, and whose weights stay; and others.
CASES = {
    "resident": Case(batch=5, in_channels=64, out_channels=64, size=(6, 40), stride=(2, 2)),
    "one by one": Case(in_channels=136, out_channels=192, size=(5, 70), stride=(2, 2)),
    "wide": Case(in_channels=24, out_channels=64, size=(3, 150), kernel=(3, 5), stride=(2, 2)),
}


@pytest.mark.parametrize("device", ["HOPPER", "FULL_HOPPER"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", swept(CASES, ("resident", "wide").__contains__))
def test_right(emulated_chained_gradients, name, dtype, device):
    library, case = emulated_chained_gradients, CASES[name]
    x, weight, _ = case.tensors(dtype)
    on = library.on(getattr(emulator, device), seed=3, detect_races=True)
    with on, forced("hopper"):
        check(library.backward, case, output_gradient(case, dtype), x, weight, True, BOTH)
        assert library.races() == []


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_magnitudes(emulated_chained_gradients, distribution):
    library, case = emulated_chained_gradients, CASES["resident"]
    case = dataclasses.replace(case, batch=2, size=(4, 21))
    x, weight, _ = case.tensors()
    grad = DISTRIBUTIONS[distribution](output_gradient(case))
    with library.on(seed=4), forced("hopper"):
        check(library.backward, case, grad, x, weight, True, BOTH)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_non_finite_values_stay_where_their_products_are(emulated_chained_gradients, value, dtype):
    """An infinite value meets no zero of a tap that is not there."""
    library, case = emulated_chained_gradients, CASES["resident"]
    case = dataclasses.replace(case, batch=1, size=(4, 21))
    x, weight, _ = case.tensors(dtype)
    grad = output_gradient(case, dtype)
    grad[0, 3, 4, 7] = grad[0, 5, 3, 30] = value
    with library.on(seed=4), forced("hopper"):
        found, _, _ = library.backward(grad, x, weight, 2, 2, 0, 0, 0, 0, 1, 1, 1, True, *BOTH)
    leaf = x.detach().double().requires_grad_()
    y = torch.nn.functional.conv_transpose2d(leaf, weight.double(), stride=2)
    # Zeros in place of products with one: PyTorch has none with what lies beyond the kernel.
    (wanted,) = torch.autograd.grad(y, leaf, grad.double())
    assert torch.equal(found.isfinite(), wanted.isfinite())
    assert bool(found.isfinite().any()) and not bool(found.isfinite().all())
