"""Residues in depth side by side in one call, and output channels in parts, where tiles are few for
the processors: on the CPU, thread by thread, right and without races.
"""

import dataclasses

import pytest

from tests.emulated_tools import forced_volume_launches, needs_cuda_headers
from tests.gpu_tools import LOW
from tests.random_dimensions import Layer, alike_residues
from tests.sweeps import swept
from tests.test_cuda_emulated_volumes import in_place

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
    assert (
        forced_volume_launches(emulated_volumes, dataclasses.replace(UP, **change), in_place, 0)
        == calls * ONE_CALL
    )


def test_one_call_each_where_tiles_are_many(emulated_volumes):
    """Processors enough for one residue alone."""
    case = dataclasses.replace(UP, batch=12, channels=8, size=(4, 8, 8), out_channels=64)
    assert forced_volume_launches(emulated_volumes, case, in_place, 0) == 2 * ONE_CALL


@pytest.mark.parametrize("dtype", LOW)
def test_sixteen_bits(emulated_volumes, dtype):
    """Which nothing waits behind."""
    assert forced_volume_launches(emulated_volumes, UP, in_place, 0, dtype) == ONE_CALL - 1


def test_values_of_any_size(emulated_volumes):
    """Beyond containers: the kernel behind computes every residue again."""
    case = dataclasses.replace(UP, kernel=(4, 2, 2), padding=(1, 0, 0), size=(2, 3, 4))
    assert forced_volume_launches(emulated_volumes, case, in_place, 0, size=1e6) == ONE_CALL
