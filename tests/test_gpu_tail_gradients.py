"""Gradients through tails by kernels of ours on a Hopper GPU: each beside PyTorch's in float64, and
in a training step.
"""

import pytest
import torch
import torch.nn.functional as F

from tests.sanitizer_cases import NORMED
from tests.test_gpu_large_tails import UNITS, drawn, like

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def solution(shelf):
    return shelf[NORMED].solution


@pytest.fixture(scope="module")
def library(solution):
    return solution["_tail_gradient_library"]()


def check(found, wanted, dtype, slack=1.0):
    """Within units of the largest one, of what a result of the dtype may differ by."""
    assert found.dtype == dtype and found.shape == wanted.shape and found.is_contiguous()
    error = float((found.double() - wanted).abs().max())
    assert error <= slack * UNITS[dtype] * float(wanted.abs().max())


def truth(y, leaves, grad):
    return torch.autograd.grad(y, leaves, grad.double())


def leaf(tensor):
    return tensor.double().requires_grad_()


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("dtype", UNITS)
@pytest.mark.parametrize("row", [7, 33, 64, 128, 200, 256, 1024])
def test_rows(library, row, dtype, shift):
    if row == 1024 and shift:
        pytest.skip("rows so long begin at boundaries")
    value, grad = drawn(dtype, 3, 5, 1000, row, shift=shift), drawn(dtype, 3, 5, 1000, row)
    weight, bias = drawn(dtype, row), drawn(dtype, row) * 0.5
    found, sums = library.layer_norm_backward.default(0, grad, value, weight, bias, 1e-3, row, 3)
    leaves = leaf(value), leaf(weight), leaf(bias)
    y = F.gelu(F.layer_norm(leaves[0], (row,), *leaves[1:], 1e-3)) * 0.5
    wanted = truth(y, leaves, grad)
    check(found, wanted[0], dtype)
    for mine, theirs in zip(sums, wanted[1:], strict=True):
        check(mine, theirs, dtype, slack=8)


@pytest.mark.parametrize("dtype", UNITS)
@pytest.mark.parametrize("channels", [1, 8, 16, 17, 32, 64, 65, 100, 128, 129, 256])
def test_softmax_over_channels(library, channels, dtype):
    for image in ((129, 31), (8, 16, 32)):
        value, shift = drawn(dtype, 3, channels, *image), drawn(dtype, channels)
        grad = drawn(dtype, 3, channels, *image).flip(1)
        leaves = leaf(value), leaf(shift)
        y = torch.sigmoid(leaves[0].softmax(1) + like(leaves[1], value))
        wanted = truth(y, leaves, grad)
        for bits in (0, 1):
            found, sums = library.softmax_backward.default(1, grad, value, bits, shift)
            if channels > 1:
                check(found, wanted[0], dtype, slack=2)
            else:
                assert not found.any()
            if bits:
                check(sums[0], wanted[1], dtype, slack=8)


@pytest.mark.parametrize("dtype", UNITS)
@pytest.mark.parametrize("plane", [100, 8192, 8193, 131072, 1000001])
def test_softmax_over_positions(library, plane, dtype):
    value, factor = drawn(dtype, 2, 5, plane) * 3, drawn(dtype, 5)
    grad = drawn(dtype, 2, 5, plane).flip(2)
    found, sums = library.plane_softmax_backward.default(2, grad, value, 1, factor)
    leaves = leaf(value), leaf(factor)
    wanted = truth(leaves[0].softmax(2) * like(leaves[1], value), leaves, grad)
    check(found, wanted[0], dtype, slack=4)
    check(sums[0], wanted[1], dtype, slack=8)


@pytest.mark.parametrize("dtype", UNITS)
@pytest.mark.parametrize("window", [(2, 2, 2), (1, 2, 2), (1, 3, 2), (4, 4, 4), (3, 1, 1)])
def test_pools(library, window, dtype):
    value, factor = drawn(dtype, 3, 7, 15, 33, 31), drawn(dtype, 7)
    out = [size // extent for size, extent in zip(value.shape[2:], window, strict=True)]
    grad = drawn(dtype, 3, 7, *out).flip(1)
    leaves = leaf(value), leaf(factor)
    y = F.silu(F.avg_pool3d(leaves[0], window) * like(leaves[1], value))
    wanted = truth(y, leaves, grad)
    for bits in (0, 1):
        found, sums = library.pool_backward.default(3, grad, value, *window, bits, factor)
        check(found, wanted[0], dtype)
        if bits:
            check(sums[0], wanted[1], dtype, slack=8)
    (wanted,) = truth(torch.tanh(F.max_pool3d(leaves[0], window)), leaves[:1], grad)
    found, _ = library.pool_backward.default(4, grad, value, *window, 0)
    check(found, wanted, dtype)


def test_two_runs_give_the_same_bits(library):
    value, grad = drawn(torch.float32, 4, 32, 16, 64, 64), drawn(torch.float32, 4, 32, 16, 64, 64)
    vector, row = value[0, :, 0, 0, 0].contiguous(), value[0, 0, 0, 0].contiguous()
    small = grad[..., ::2, ::2, ::2].contiguous()
    calls = (
        lambda: library.layer_norm_backward.default(0, grad, value, row, row, 1e-3, 64, 3),
        lambda: library.softmax_backward.default(1, grad, value, 1, vector),
        lambda: library.plane_softmax_backward.default(2, grad, value, 1, vector),
        lambda: library.pool_backward.default(3, small, value, 2, 2, 2, 1, vector),
    )
    for call in calls:
        assert all(torch.equal(a, b) for a, b in zip(call(), call(), strict=True))


def test_a_training_step_calls_them(shelf, solution, monkeypatch):
    """Of a window another value may be the largest here and there, which moves a gradient."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("tails are ours on Hopper alone")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    reference, ours = (model.cuda() for model in shelf[NORMED].pair())
    x = torch.rand(16, 3, 64, 64, 8, device="cuda")
    profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
    leaf_ = x.clone().requires_grad_()
    y = ours(leaf_)
    grad = torch.randn_like(y)
    leaves = [leaf_, *ours.parameters()]
    with profile:
        found = torch.autograd.grad(y, leaves, grad)
        torch.cuda.synchronize()
    exact = x.double().requires_grad_()
    wanted = torch.autograd.grad(
        reference.double()(exact), [exact, *reference.parameters()], grad.double()
    )
    for mine, theirs in zip(found, wanted, strict=True):
        assert float((mine.double() - theirs).norm()) <= 1e-2 * float(theirs.norm())
    seen = " ".join({event.name for event in profile.events()})
    if "tconv" in seen:
        for name in ("row_norm_gradient", "channel_softmax_gradient", "plane_softmax_gradient"):
            assert f"{name}_kernel" in seen
        assert "window_pool_gradient_kernel" in seen or "window_pool_sums_kernel" in seen
