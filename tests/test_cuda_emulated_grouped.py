"""The kernel for volumes of few channels a group in 16 bits, on the CPU, thread by thread: random
layers, right and without races; infinite weights; what it leaves to others.
"""

import dataclasses

import pytest
import torch

from tests.emulated_tools import forced_volume_launches, needs_cuda_headers
from tests.gpu_tools import LOW
from tests.random_dimensions import few_channels
from tests.sweeps import swept
from tests.test_cuda_emulated_volumes import in_place

pytestmark = needs_cuda_headers
LAYERS = 60
HALF_STEP = 2.0**-25  # of fp16's subnormals
GRID = [(dtype, start) for start in range(0, 4 * LAYERS, LAYERS) for dtype in LOW]


@pytest.fixture(scope="module")
def emulated(emulated_volumes):
    emulated_volumes.solution["_VOLUME_DEVICES"] = ("cpu",)
    return emulated_volumes


@pytest.mark.parametrize(("dtype", "start"), swept(GRID, (0, 1), names=2))
def test_random_layers(emulated, dtype, start):
    """One launch a residue in depth."""
    computed = 0
    for seed in range(start, start + LAYERS):
        case = few_channels(seed)
        launches = forced_volume_launches(
            emulated, case, in_place, seed, dtype, kernel="auto", steps=1.01, least=HALF_STEP
        )
        computed += launches is not None
        assert launches is None or launches <= case.stride[0], case
    assert computed > LAYERS / 2


@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_infinities_and_nan(emulated, dtype):
    """Where exact arithmetic has them, and nowhere else: absent inputs are not multiplied."""
    computed = 0
    for seed in range(20):
        case = dataclasses.replace(few_channels(seed), padding=(0, 0, 0))
        x, weight, bias = (None if t is None else t.detach() for t in case.operands(dtype))
        made = torch.Generator().manual_seed(seed)
        bad = (float("inf"), float("-inf"), float("nan"))
        for tensor in (x, weight)[seed % 2 :]:
            places = torch.randint(tensor.numel(), (3,), generator=made)
            tensor[torch.unravel_index(places, tensor.shape)] = torch.tensor(bad, dtype=dtype)
        try:
            wanted = case.reference(*(None if t is None else t.double() for t in (x, weight, bias)))
        except RuntimeError:
            continue
        with emulated.on(seed=seed):
            out = in_place(emulated, (x, weight, bias), case)
        if out is None:
            continue
        assert torch.equal(out.isnan(), wanted.isnan()), case
        assert torch.equal(out.isinf(), wanted.isinf()), case
        computed += not bool(wanted.isfinite().all())
    assert computed >= 10
