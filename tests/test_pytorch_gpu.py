"""On a GPU what the tests beside this one ask on a CPU: layouts, autocast, mixed modules."""

import copy

import pytest
import torch

from tests.gpu_tools import tf32
from tests.pytorch_tools import MODE_IDS, MODES, assert_same, gradients, input_of, pair_of
from tests.solution_tools import relative_error
from tests.test_pytorch_training import FLOOR, assert_gradients_no_worse

pytestmark = pytest.mark.gpu
modes = pytest.mark.parametrize(("name", "training"), MODES, ids=MODE_IDS)


def pair_on_gpu(shelf, name, training, dtype):
    return [model.cuda() for model in pair_of(shelf, name, training, dtype)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@modes
def test_channels_last(shelf, name, training, dtype):
    """Values and gradients."""
    model, new = pair_on_gpu(shelf, name, training, dtype)
    exact = copy.deepcopy(model).double()
    x = input_of(name, dtype).cuda().to(memory_format=torch.channels_last)
    with tf32(False):
        assert_gradients_no_worse(new, model, exact, x, lambda m, x: m(x), FLOOR[dtype])


@modes
def test_layouts_of_channels_last(shelf, name, training, request):
    """Of the output and of the input's gradient."""
    if name in ("19", "11"):
        reason = "PyTorch's GroupNorm leaves NCHW on CUDA, ours the input's layout"
        request.applymarker(pytest.mark.xfail(strict=True, reason=reason))
    model, new = pair_on_gpu(shelf, name, training, torch.float32)
    x = input_of(name, torch.float32).cuda().to(memory_format=torch.channels_last)
    (y, mine), (expected, theirs) = gradients(new, x), gradients(model, x)
    assert (y.stride(), mine[0].stride()) == (expected.stride(), theirs[0].stride())


@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16], ids=str)
@modes
def test_autocast(shelf, name, training, low):
    model, new = pair_on_gpu(shelf, name, training, torch.float32)
    exact = copy.deepcopy(model).double()

    def through(candidate, x):
        with torch.autocast("cuda", dtype=low):
            return candidate(x)

    x = input_of(name, torch.float32).cuda()
    assert_gradients_no_worse(new, model, exact, x, through, FLOOR[low])


@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", ["19", "11"])
def test_norms_left_in_fp32(shelf, name, training, low):
    """Of such a model PyTorch refuses GroupNorm on CUDA, and takes it on a CPU."""
    model, new = pair_on_gpu(shelf, name, training, torch.float32)
    for candidate in (model, new):
        candidate.to(low)
        for module in candidate.modules():
            if isinstance(module, (torch.nn.GroupNorm, torch.nn.BatchNorm2d)):
                module.float()
    exact = copy.deepcopy(model).double()
    x = input_of(name, low).cuda()
    with pytest.raises(RuntimeError, match="expected scalar type"):
        model(x)
    got, found = gradients(new, x)
    wanted, truth = gradients(exact, x.double())
    # A bias in front of BatchNorm by the batch's statistics has none: rounding is all there is.
    least = 1e-9 * max(float(t.double().norm()) for t in truth)
    for ours, theirs in zip((got, *found), (wanted, *truth), strict=True):
        if float(theirs.norm()) < least:
            assert float(ours.double().norm()) <= 4 * FLOOR[low]
            continue
        assert relative_error(ours, theirs) <= 4 * FLOOR[low]


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
@modes
def test_compile_modes(shelf, name, training, mode):
    """Several calls, so that the graphs that these modes capture are replayed."""
    model, new = pair_on_gpu(shelf, name, training, torch.float32)
    torch._dynamo.reset()
    compiled = torch.compile(new, mode=mode)
    with tf32(False), torch.no_grad():
        for seed in range(4):
            x = input_of(name, torch.float32, seed=seed).cuda()
            assert_same(compiled(x).clone(), model(x), rtol=1e-3, atol=1e-4)
