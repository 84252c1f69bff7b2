"""Operands of the output's shape in the CUDA kernels, on the CPU, thread by thread: random layers
of two and three dimensions by every kernel, results and gradients, without races.
"""

import dataclasses

import pytest
import torch

from tests.emulated_tools import forced, needs_cuda_headers
from tests.gpu_tools import tf32
from tests.sweeps import swept
from tests.tensor_operand_tools import MADE, WHOLE_VOLUMES, called, given, image, wrong

pytestmark = needs_cuda_headers

LAYERS = 24
KERNELS = ("plain", "direct", "portable", "hopper", "auto")
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
GRID = [(kernel, dtype) for kernel in KERNELS for dtype in DTYPES]
CHANNELS = (2, 8, 40, 64)  # of a group


@pytest.fixture(scope="module")
def emulated(emulated_residual):
    emulated_residual.solution["_VOLUME_DEVICES"] = ("cpu",)
    return emulated_residual


def forward(emulated, of, kernel: str, seed: int) -> list | None:
    """The result, no gradients; None where a forced kernel refuses."""
    with emulated.on(seed=seed, detect_races=True), forced(kernel), tf32(True), torch.no_grad():
        try:
            y = called(emulated.solution, of)
        except RuntimeError as error:
            assert "forced by TCONV_KERNEL" in str(error) and kernel not in ("plain", "auto")
            return None
        assert emulated.races() == [], of.layer
    return [y, *[None] * len(of.leaves)]


@pytest.mark.parametrize(
    ("kernel", "dtype"), swept(GRID, lambda case: case[0] == "hopper", names=2), ids=str
)
def test_random_images(emulated, kernel, dtype):
    told, computed = [], 0
    for seed in range(LAYERS):
        of = given(image(seed, CHANNELS, wide=40), dtype)
        found = of and forward(emulated, of, kernel, seed)
        if found:
            told += [f"{of.layer}: {what}" for what in wrong(of, found)]
            computed += 1
    assert told == [] and computed >= LAYERS / 4


@pytest.mark.parametrize("dtype", swept(DTYPES, (0,)), ids=str)
@pytest.mark.parametrize("stride", [1, 2])
def test_many_channels(emulated, stride, dtype):
    """Few outputs, whose pixels are gathered: one column a lane, and pairs of them."""
    seed = next(s for s in range(99) if (image(s).groups, image(s).batch) == (1, 2))
    numbers = {"stride": (stride,) * 2, "padding": (1, 1), "output_padding": (0, 0)}
    numbers |= {"channels": 130, "out_channels": 192, "size": (4, 5), "dilation": (1, 1)}
    of = given(dataclasses.replace(image(seed), kernel=(2 + stride,) * 2, **numbers), dtype)
    assert wrong(of, forward(emulated, of, "hopper", 2)) == []


@pytest.mark.parametrize("dtype", swept(DTYPES, (0, 1)), ids=str)
@pytest.mark.parametrize("dimensions", [1, 3])
def test_small_planes(emulated, dimensions, dtype):
    """Of which vectors hold several, and channels of them again."""
    told, computed = [], 0
    for seed in range(2 * LAYERS):
        of = given(MADE[dimensions](seed), dtype)
        found = of and forward(emulated, of, "auto", seed)
        if found:
            told += [f"{of.layer}: {what}" for what in wrong(of, found)]
            computed += 1
    assert told == [] and computed > LAYERS


@pytest.mark.parametrize("dtype", swept(DTYPES, (0,)), ids=str)
def test_random_volumes(emulated, dtype):
    """In place, and what that declines slice by slice."""
    told, computed = [], 0
    for seed in range(LAYERS):
        of = given(WHOLE_VOLUMES(seed), dtype)
        found = of and forward(emulated, of, "hopper", seed)
        if found:
            told += [f"{of.layer}: {what}" for what in wrong(of, found)]
            computed += 1
    assert told == [] and computed > LAYERS / 3


def test_where_containers_cannot_hold_the_input(emulated):
    """The strict kernel computes the outputs again, and joins the operands again."""
    for make in (lambda seed: image(seed, (40,)), WHOLE_VOLUMES):
        of = next(of for of in map(given, map(make, range(99))) if of)
        x = of.operands[0] = (of.operands[0].detach() * 1e6).requires_grad_()
        assert bool(x.abs().max() > 65504)
        assert wrong(of, forward(emulated, of, "hopper", 1)) == []


@pytest.mark.parametrize("dtype", swept(DTYPES, (0,)), ids=str)
@pytest.mark.parametrize("make", [image, WHOLE_VOLUMES], ids=["images", "volumes"])
def test_gradients(
    emulated, emulated_residual_gradients, emulated_volume_gradients, monkeypatch, make, dtype
):
    solution, chains = emulated.solution, emulated_residual_gradients
    monkeypatch.setitem(solution, "_gradient_library", lambda: emulated_volume_gradients.namespace)
    monkeypatch.setitem(solution, "_norm_backward_kernels", lambda: chains.backward)
    monkeypatch.setitem(solution, "_GRADIENT_DEVICES", ("cpu",))
    # What volumes' chains begin with is kept: it is not computed again.
    monkeypatch.setitem(solution, "_library_volumes", None)
    told, launches = [], 0
    for seed in range(LAYERS // 2):
        of = given(make(seed), dtype)
        if of is None:
            continue
        with emulated.on(), emulated_volume_gradients.on(), tf32(True):
            with chains.on(seed=seed, detect_races=True):
                y = called(solution, of)
                found = [y, *torch.autograd.grad(y, of.leaves, of.grad)]
                launches += chains.launches()
                assert chains.races() == [], of.layer
        told += [f"{of.layer}: {what}" for what in wrong(of, found)]
    assert told == [] and launches > LAYERS / 4
