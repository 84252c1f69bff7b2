"""Steps as users write them: accumulated and clipped gradients, autocast with a gradient scaler,
torch.compile, CUDA graphs, checkpoints, torch.func. What moves is no further from float64's than
with eager PyTorch.
"""

import copy

import pytest
import torch

from tests.gpu_tools import tf32
from tests.pytorch_tools import MODE_IDS, MODES, assert_no_worse, pair_of
from tests.solution_tools import relative_error
from tests.training_steps import WAYS, batches, updates

FLOOR = {"plain": 2e-5, "scaled": 5e-3}
modes = pytest.mark.parametrize(("name", "training"), MODES[:-1], ids=MODE_IDS[:-1])


def check(shelf, name, training, way, device):
    if way == "functional" and name == "11" and training:
        pytest.skip("torch.func.grad refuses BatchNorm in training mode, of PyTorch and of ours")
    model, new = pair_of(shelf, name, training, torch.float32)
    steps = batches(copy.deepcopy(model).to("meta"), device, torch.float32)
    doubled = [[tuple(t.double() for t in part) for part in batch] for batch in steps]
    exact = updates(copy.deepcopy(model).double().to(device), "plain", doubled)
    found = [updates(candidate.to(device), way, steps) for candidate in (new, model)]
    size = max(float(truth.norm()) for truth in exact)
    for mine, theirs, truth in zip(*found, exact, strict=True):
        if truth.norm() > 1e-9 * size:  # not a bias before BatchNorm
            assert relative_error(theirs, truth) < 0.5  # eager itself moves them
            assert_no_worse(mine, theirs, truth, FLOOR.get(way, FLOOR["plain"]))


@pytest.mark.sweep
@pytest.mark.parametrize("way", [way for way in WAYS if way != "graphed"])
@modes
def test_on_a_cpu(shelf, name, training, way):
    check(shelf, name, training, way, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("way", WAYS)
@modes
def test_on_a_gpu(shelf, name, training, way):
    with tf32(False):
        check(shelf, name, training, way, "cuda")
