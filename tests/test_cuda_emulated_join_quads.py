"""An operand of the output's shape that the Hopper kernel reads where it stores its outputs, thread
by thread on the CPU: the same bits as by a pass behind it, and near the truth.
"""

import pytest
import torch

from tests.emulated_tools import forced, needs_cuda_headers
from tests.join_quads_tools import DIMENSIONS, Case, beyond, misaligned
from tests.sweeps import swept

pytestmark = needs_cuda_headers

LAYERS = 10
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


@pytest.fixture(scope="module")
def emulated(emulated_joined):
    emulated_joined.solution["_VOLUME_DEVICES"] = ("cpu",)
    return emulated_joined


def both_ways(emulated, case: Case, seed: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    """(the kernel's own, by the pass, how many launches more the pass takes)"""
    found, launches = [], []
    for skip in (case.skip, misaligned(case.skip)):
        with emulated.on(seed=seed, detect_races=True), forced("hopper"):
            found.append(case.called(emulated.solution, skip))
            launches.append(emulated.launches())
            assert emulated.races() == []
    return *found, launches[1] - launches[0]


def check(emulated, case: Case, seed: int) -> int:
    own, behind, more = both_ways(emulated, case, seed)
    assert torch.equal(own, behind)
    assert beyond(case, own) <= 1
    return more


@pytest.mark.parametrize("dtype", swept(DTYPES, (0,)), ids=str)
def test_random_volumes(emulated, dtype):
    more = [check(emulated, Case(3, seed, dtype), seed) for seed in range(LAYERS)]
    assert set(more) == {0, 1} and sum(more) >= LAYERS // 3, more


@pytest.mark.parametrize(
    ("dtype", "large"), [(torch.float32, False), (torch.float32, True), (torch.float16, False)]
)
def test_what_is_kept_for_gradients(emulated, dtype, large):
    """The value that the operand is added to, beside the result; from the strict kernel, too."""
    case, found, launches = Case(3, 3, dtype, large), [], []
    for skip in (case.skip, misaligned(case.skip)):
        with emulated.on(seed=1, detect_races=True), forced("hopper"):
            found.append(case.called_with_value(emulated.solution, skip))
            launches.append(emulated.launches())
            assert emulated.races() == []
            alone = case.called(emulated.solution, skip)
        assert torch.equal(found[-1][0], alone)
    assert torch.equal(found[0][1], found[1][1])
    assert launches[1] - launches[0] == 1


@pytest.mark.parametrize("dtype", swept(DTYPES, (0, 1)), ids=str)
def test_random_images(emulated, dtype):
    """In fp32 the pass stands behind the strict kernel, too, and does nothing."""
    more = [check(emulated, Case(2, seed, dtype), seed) for seed in range(2 * LAYERS)]
    if dtype == torch.float32:
        assert set(more) == {0}
    else:
        assert set(more) == {0, 1} and sum(more) >= LAYERS // 3, more


@pytest.mark.parametrize("dimensions", DIMENSIONS)
def test_where_containers_cannot_hold_the_input(emulated, dimensions):
    """What computes the outputs again joins them again."""
    case = Case(dimensions, 3, torch.float32, large=True)
    own, behind, more = both_ways(emulated, case, 1)
    assert bool(case.x.abs().max() > 65504) and torch.equal(own, behind)
    assert more == (dimensions == 3)  # an image's pass is launched, too, and finds the guard raised
    off = ((own.double() - case.truth) / case.truth.abs().max()).abs().max()
    assert float(off) < 1e-4
