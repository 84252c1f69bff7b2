"""An operand of the output's shape that the Hopper kernel reads where it stores its outputs, on a
GPU: the same bits as by a pass behind it, and near the truth; a model of two such steps.
"""

import pytest
import torch

from tests.gpu_tools import LOW, forced
from tests.join_quads_tools import DIMENSIONS, Case, beyond, misaligned

pytestmark = pytest.mark.gpu

LAYERS = 40


@pytest.fixture(scope="module")
def solution(shelf) -> dict:
    return shelf["joined_upsampling"].solution


def on_gpu(case: Case) -> Case:
    for name in ("x", "weight", "bias", "skip", "size", "truth"):
        setattr(case, name, getattr(case, name).cuda())
    return case


@pytest.mark.parametrize("dimensions", DIMENSIONS)
@pytest.mark.parametrize("dtype", [torch.float32, *LOW], ids=str)
def test_random_layers(solution, dtype, dimensions):
    for seed in range(LAYERS):
        case = on_gpu(Case(dimensions, seed, dtype))
        with forced("hopper"):
            own = case.called(solution, case.skip)
            behind = case.called(solution, misaligned(case.skip))
        assert torch.equal(own, behind), seed
        assert beyond(case, own) <= 1, seed


@pytest.mark.parametrize("dtype", [torch.float32, *LOW], ids=str)
def test_what_is_kept_for_gradients(solution, dtype):
    for seed in range(LAYERS):
        case = on_gpu(Case(3, seed, dtype))
        with forced("hopper"):
            own, value = case.called_with_value(solution, case.skip)
            behind, as_before = case.called_with_value(solution, misaligned(case.skip))
        assert torch.equal(own, behind) and torch.equal(value, as_before), seed


@pytest.mark.parametrize("dimensions", DIMENSIONS)
def test_where_containers_cannot_hold_the_input(solution, dimensions):
    case = on_gpu(Case(dimensions, 3, torch.float32, large=True))
    with forced("hopper"):
        own = case.called(solution, case.skip)
        assert torch.equal(own, case.called(solution, misaligned(case.skip)))
    assert float(((own.double() - case.truth) / case.truth.abs().max()).abs().max()) < 1e-4


def test_a_large_model_again_and_again(solution):
    """Many tiles a block: places in shared memory are used over and over."""
    torch.manual_seed(0)
    model = solution["ModelNew"](32, 64).cuda()
    given = [torch.randn(8, 32, 96, 96), torch.randn(8, 64, 192, 192)]
    given += [torch.randn(8, 32, 12, 16, 16), torch.randn(8, 64, 24, 32, 32)]
    given = [t.cuda() for t in given]
    behind = [misaligned(t) if i % 2 else t for i, t in enumerate(given)]
    with torch.no_grad():
        expected = model(*behind)
        for _ in range(5):
            for own, other in zip(model(*given), expected, strict=True):
                assert torch.equal(own, other)
