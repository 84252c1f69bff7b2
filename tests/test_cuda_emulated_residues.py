"""Residues in depth side by side in one call, and output channels in parts, where tiles are few for
the processors: on the CPU, thread by thread, right and without races.
"""

import dataclasses

import pytest
import torch

from tests.emulated_tools import forced, forced_volume_launches, needs_cuda_headers
from tests.gpu_tools import LOW
from tests.random_dimensions import Layer, alike_residues
from tests.solution_tools import assert_within
from tests.sweeps import swept
from tests.test_cuda_emulated_volumes import STEPS, in_place

pytestmark = needs_cuda_headers
ONE_CALL = 3  # launches: weights, the convolution, and what waits for the guard


@pytest.mark.parametrize("start", swept(range(0, 120, 20), (0,)))
def test_random_layers(emulated_volumes, start):
    launches = []
    for seed in range(start, start + 20):
        case = alike_residues(seed)
        launches.append(forced_volume_launches(emulated_volumes, case, in_place, seed))
    assert launches.count(ONE_CALL) >= 5


UP = Layer(
    seed=1,
    batch=2,
    channels=16,
    out_channels=256,
    size=(3, 8, 8),
    kernel=(2, 2, 2),
    stride=(2, 2, 2),
    padding=(0, 0, 0),
    output_padding=(0, 0, 0),
    dilation=(1, 1, 1),
    groups=1,
    bias=True,
    layout="contiguous",
)


def launches_of(emulated, case: Layer, dtype=torch.float32, size=1.0) -> int:
    emulated.solution["_VOLUME_DEVICES"] = ("cpu",)
    x, *rest = [t if t is None else t.detach().to(dtype) for t in case.operands()]
    operands = [x * size, *rest]
    with emulated.on(detect_races=True), forced("hopper"):
        out = in_place(emulated, operands, case)
        launches = emulated.launches()
        assert emulated.races() == []
    exact = [None if t is None else t.double() for t in operands]
    most = case.reference(*[None if t is None else t.abs() for t in exact])
    bound = 2.1 * STEPS[dtype] * most + 1e-30
    assert_within(out, case.reference(*exact), bound)
    return launches


@pytest.mark.parametrize(
    ("change", "calls"),
    [
        ({}, 1),
        ({"kernel": (4, 2, 2), "padding": (1, 0, 0)}, 1),
        ({"kernel": (4, 2, 2), "stride": (4, 2, 2)}, 1),
        ({"kernel": (3, 2, 2)}, 2),  # of more taps in one than in the other
        ({"kernel": (2, 2, 2), "padding": (1, 0, 0), "output_padding": (1, 0, 0)}, 2),
        ({"kernel": (3, 2, 2), "stride": (3, 2, 2)}, 3),
        ({"out_channels": 32}, 2),
    ],
    ids=str,
)
def test_one_call_where_residues_are_alike(emulated_volumes, change, calls):
    assert launches_of(emulated_volumes, dataclasses.replace(UP, **change)) == calls * ONE_CALL


def test_one_call_each_where_tiles_are_many(emulated_volumes):
    """Processors enough for one residue alone."""
    case = dataclasses.replace(UP, batch=100, channels=8, size=(4, 3, 3), out_channels=64)
    assert launches_of(emulated_volumes, case) == 2 * ONE_CALL


@pytest.mark.parametrize("dtype", LOW)
def test_sixteen_bits(emulated_volumes, dtype):
    """Which nothing waits behind."""
    assert launches_of(emulated_volumes, UP, dtype) == ONE_CALL - 1


def test_values_of_any_size(emulated_volumes):
    """Beyond containers: the kernel behind computes every residue again."""
    case = dataclasses.replace(UP, kernel=(4, 2, 2), padding=(1, 0, 0), size=(2, 3, 4))
    assert launches_of(emulated_volumes, case, size=1e6) == ONE_CALL
