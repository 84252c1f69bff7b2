"""The kernel for volumes of few channels on a GPU: layers that a solution compiles it for."""

import random

import pytest
import torch
import torch.nn.functional as F

from tests.builds_ahead import FEW_CHANNELS
from tests.gpu_tools import tf32

pytestmark = pytest.mark.gpu
LAST_PLACES = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


@pytest.mark.parametrize("allowed", [True, False])
@pytest.mark.parametrize("dtype", LAST_PLACES)
@pytest.mark.parametrize("first", range(0, 40, 10))
def test_random_sizes(shelf, first, dtype, allowed):
    solution = shelf[FEW_CHANNELS].solution
    layers, computed = solution["ModelNew"]().layers, 0
    for seed in range(first, first + 10):
        for number, layer in enumerate(layers):
            rng, made = random.Random(7 * seed + number), torch.Generator().manual_seed(seed)
            sizes = rng.randint(1, 9), rng.randint(1, 70), rng.randint(1, 140)
            out_channels, channels = rng.choice([1, 5, 16, 40]), layer.in_channels
            shapes = (rng.randint(1, 3), channels, *sizes), (channels, out_channels)
            x, weight, bias = (
                torch.randn(shape, generator=made).to("cuda", dtype)
                for shape in (shapes[0], (*shapes[1], *layer.kernel_size), (out_channels,))
            )
            axes = [layer.stride, layer.padding, layer.output_padding, layer.dilation]
            exact = [t.double() for t in (x, weight, bias)]
            try:
                wanted, most = (
                    F.conv_transpose3d(*given, *axes[:3], 1, axes[3])
                    for given in (exact, [t.abs() for t in exact])
                )
            except RuntimeError:
                continue
            call = solution["_whole_volumes"]
            with tf32(allowed):
                out = call(None, "", ((), 0), x, weight, bias, axes, 1, ())
            if out is None:
                assert sizes[0] < 3
                continue
            wanted = torch.tanh(wanted) * 0.5
            bound = LAST_PLACES[dtype] * wanted.abs() + 2.0**-20 * most + 2.0**-22
            assert bool(((out.double() - wanted).abs() <= bound).all()), (seed, layer)
            computed += 1
    assert computed >= 40


def test_a_model_trains(shelf):
    """Its outputs and gradients beside eager's in float64, TF32 forbidden and allowed."""
    reference, ours = (model.cuda() for model in shelf[FEW_CHANNELS].pair())
    reference = reference.double()
    x = torch.rand(2, 7, 5, 20, 33, device="cuda")
    for allowed, most in ((False, 1e-5), (True, 3e-3)):
        leaf, exact = x.clone().requires_grad_(), x.double().requires_grad_()
        with tf32(allowed):
            outputs, wanted = ours(leaf), reference(exact)
            grads = [torch.randn_like(y) for y in outputs]
            found = torch.autograd.grad(outputs, [leaf, *ours.parameters()], grads)
        doubles = [grad.double() for grad in grads]
        right = torch.autograd.grad(wanted, [exact, *reference.parameters()], doubles)
        for a, b in zip((*outputs, *found), (*wanted, *right), strict=True):
            assert float((a.detach().double() - b.detach()).norm() / b.detach().norm()) < most
