"""Transposed convolutions of one and three dimensions on a CUDA GPU: random layers in every
precision, with gradients, within bounds from float64.
"""

import pytest
import torch

from tests.gpu_tools import tf32
from tests.random_dimensions import layer
from tests.test_dimensions import LIFTED

pytestmark = pytest.mark.gpu

# Of an operand or a result: 11 significant bits, 8, and fp32's after sums of some hundred products.
ROUNDINGS = {
    "tf32": (torch.float32, True, 2.0**-11),
    "fp32": (torch.float32, False, 2.0**-20),
    "fp16": (torch.float16, True, 2.0**-11),
    "bf16": (torch.bfloat16, True, 2.0**-8),
    "fp64": (torch.float64, True, 2.0**-44),
}


def magnitudes(case, operands) -> list:
    """Sums of the absolute values of all products, of the output and of every gradient."""
    leaves = [None if t is None else t.detach().abs().requires_grad_() for t in operands]
    out = case.reference(*leaves)
    return [out.detach(), *gradients(out, leaves)]


def gradients(out, operands) -> list:
    """For a gradient of ones."""
    return list(torch.autograd.grad(out.sum(), [t for t in operands if t is not None]))


@pytest.mark.parametrize("count", LIFTED)
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_random_layers(shelf, count, rounding):
    operator = shelf["69"].solution["_operator"]
    dtype, allowed, step = ROUNDINGS[rounding]
    computed = 0
    for seed in range(1000, 1060):
        case = layer(count, seed)
        operands = case.operands(dtype, "cuda")
        exact = [None if t is None else t.detach().double().cpu() for t in operands]
        exact = [None if t is None else t.requires_grad_() for t in exact]
        try:
            wanted = case.reference(*exact)
        except RuntimeError:
            continue
        if wanted.numel() == 0:
            continue
        with tf32(allowed):
            out = LIFTED[count](operator, *operands, *case.parameters)
            found = [out.detach(), *gradients(out, operands)]
        truth = [wanted.detach(), *gradients(wanted, exact)]
        for ours, theirs, most in zip(found, truth, magnitudes(case, exact), strict=True):
            error = (ours.double().cpu() - theirs).abs()
            assert bool((error <= 4 * step * most + 1e-30).all()), (case, float(error.max()))
        computed += 1
    assert computed > 25
