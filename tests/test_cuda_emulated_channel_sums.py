"""Sums of a volume's channels by the CUDA kernels, on the CPU, thread by thread."""

import pytest
import torch

from generator.runtime import gradient_kernels, volume_gradients
from tests.emulated_tools import needs_cuda_headers

pytestmark = needs_cuda_headers
DTYPES = torch.float32, torch.float16, torch.bfloat16


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 5, 3, 4, 7), (1, 2, 1, 1, 1), (2, 3, 9, 16, 32)], ids=str)
def test_sums_of_channels(emulated_volume_gradients, monkeypatch, dtype, shape):
    kernels = emulated_volume_gradients.namespace.backward.default
    monkeypatch.setattr(gradient_kernels, "_backward_kernels", lambda: kernels)
    grad = torch.randn(shape).to(dtype) + 1
    with emulated_volume_gradients.on(detect_races=True):
        found = volume_gradients._channel_sums(grad)
        assert emulated_volume_gradients.races() == []
    wanted = grad.double().sum((0, 2, 3, 4))
    assert found.dtype == dtype
    size = grad.double().abs().sum((0, 2, 3, 4))
    allowed = torch.finfo(dtype).eps * wanted.abs() + 1e-6 * size
    assert ((found.double() - wanted).abs() <= allowed).all()
    repeated = grad[:, :, :1].expand(shape)
    torch.testing.assert_close(
        volume_gradients._channel_sums(repeated).double(),
        repeated.double().sum((0, 2, 3, 4)),
        rtol=4 * torch.finfo(dtype).eps,
        atol=4 * torch.finfo(dtype).eps * float(size.max()),
    )


def test_sums_that_cancel(emulated_volume_gradients, monkeypatch):
    """Of volumes every sum is in fp64, but for the result."""
    kernels = emulated_volume_gradients.namespace.backward.default
    monkeypatch.setattr(gradient_kernels, "_backward_kernels", lambda: kernels)
    first = torch.randn(2, 1, 1, 128, 128)
    second = -first.flatten()[torch.randperm(first.numel())].view(first.shape) + 1e-7
    grad = torch.cat([first, second], 2)
    with emulated_volume_gradients.on():
        found = volume_gradients._channel_sums(grad)
    wanted = grad.double().sum((0, 2, 3, 4))
    assert float((found.double() - wanted).abs()) <= 2.0**-23 * float(wanted.abs()) + 1e-11
