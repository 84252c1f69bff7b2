"""The gathered kernel over volumes, on the CPU, thread by thread: its pixels are read once for all
depth taps, and residues in depth that are alike are computed side by side.
"""

import dataclasses

import pytest
import torch

from tests import test_cuda_emulated_residues as residues
from tests.cuda_emulator import emulator
from tests.emulated_tools import forced, forced_volume_launches, needs_cuda_headers
from tests.gpu_tools import LOW
from tests.random_dimensions import deep
from tests.sweeps import swept
from tests.test_cuda_emulated_volumes import in_place

pytestmark = needs_cuda_headers
# Launches of a call: pixels, weights, the convolution, and what waits for the guard.
GATHERED, OTHERS = 4, 3


def launches_of(emulated, case, seed=0, **more):
    """On a device of as many processors as an H100 has: small layers are for few there."""
    device = emulator.FULL_HOPPER
    return forced_volume_launches(emulated, case, in_place, seed, device=device, **more)


@pytest.mark.parametrize("start", swept(range(0, 120, 20), (0,)))
def test_random_layers(emulated_volumes, start):
    gathered = 0
    for seed in range(start, start + 20):
        launches = launches_of(emulated_volumes, deep(seed), seed)
        gathered += launches is not None and launches % GATHERED == 0
    assert gathered >= 3


UP = dataclasses.replace(residues.UP, channels=128, out_channels=200, size=(2, 3, 3))


@pytest.mark.parametrize(
    ("change", "launches"),
    [
        ({}, GATHERED),
        ({"kernel": (4, 4, 4), "padding": (1, 1, 1)}, GATHERED),  # two depth taps each
        ({"kernel": (3, 2, 2)}, 2 * GATHERED),  # of more taps in one than in the other
        ({"kernel": (4, 4, 4), "padding": (1, 1, 1), "groups": 2}, GATHERED),
        ({"kernel": (3, 3, 3), "stride": (1, 1, 1), "padding": (1, 1, 1)}, GATHERED),
        ({"channels": 72}, GATHERED),  # filled up to two blocks of 64
        ({"channels": 72, "kernel": (4, 2, 2)}, OTHERS),  # blocks that two depth taps share
        ({"channels": 16, "size": (2, 40, 40)}, OTHERS),  # many pixels of few channels
    ],
    ids=str,
)
def test_which_are_gathered(emulated_volumes, change, launches):
    case = dataclasses.replace(UP, **change)
    assert launches_of(emulated_volumes, case) == launches


@pytest.mark.parametrize("dtype", LOW)
def test_sixteen_bits(emulated_volumes, dtype):
    """Which nothing waits behind."""
    assert launches_of(emulated_volumes, UP, dtype=dtype) == GATHERED - 1


def test_values_of_any_size(emulated_volumes):
    """Beyond containers: the kernel behind computes every residue again."""
    assert launches_of(emulated_volumes, UP, size=1e6) == GATHERED


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_what_is_not_finite_is_where_its_products_are(emulated_volumes, value):
    case = dataclasses.replace(UP, kernel=(4, 4, 4), padding=(1, 1, 1))
    x, weight, bias = [tensor.detach() for tensor in case.operands(torch.float32)]
    x[1, 3, 0, 2, 1] = value
    emulated_volumes.solution["_VOLUME_DEVICES"] = ("cpu",)
    with emulated_volumes.on(emulator.FULL_HOPPER), forced("hopper"):
        out = in_place(emulated_volumes, (x, weight, bias), case)
    wanted = case.reference(x, weight, bias)
    assert torch.equal(out.isfinite(), wanted.isfinite()) and not bool(out.isfinite().all())
    assert torch.equal(out.isnan(), wanted.isnan())


def test_plans_know_how_deep_the_input_is(emulated_volumes):
    """Two calls that differ in nothing else: as many output slices of volumes of other depths."""
    cases = [
        dataclasses.replace(UP, size=(depth, 3, 3), stride=(1, 2, 2), kernel=(3, 2, 2), padding=p)
        for depth, p in ((3, (1, 0, 0)), (1, (0, 0, 0)), (5, (2, 0, 0)))
    ]
    for case in cases:
        assert launches_of(emulated_volumes, case) == GATHERED
