"""What takes the place of volume_gradients.py's functions where all that the chain's gradient asks
of the convolution's output is one condition: forward on CUDA keeps the answers, a byte for each
output (kernels_src/binding/operator_depth_mask.h), and backward does not compute it again.
"""

import math as _math

import torch

from generator.runtime.allocation import _ALLOCATION
from generator.runtime.arguments import _output_size
from generator.runtime.build import _NAMESPACE
from generator.runtime.dispatch import _outside_autocast
from generator.runtime.generated import _RESULT_CHAINS
from generator.runtime.gradient_kernels import _GRADIENT_DEVICES
from generator.runtime.group_norm_gradient_kernels import _kernel_chain_gradients
from generator.runtime.kept_output import _LEAST_KEPT
from generator.runtime.precision import _tf32_allowed
from generator.runtime.volume_gradients import _gradients_of_volumes
from generator.runtime.volume_operator import (
    _count_volume_flops,
    _declining_operator,
    _run_volumes,
)


class _Volumes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, kernels, other, chain, axes, groups, x, weight, bias, *vectors):
        steps, number = chain
        if ctx.needs_input_grad[5] and _keeps_mask(x, weight, axes, groups):
            result, mask = _run_masked(x, weight, bias, axes, groups)
        else:
            result, mask = _run_volumes(kernels, x, weight, bias, axes, groups, vectors), None
        of_mask = None if mask is None else _RESULT_CHAINS[number]
        ctx.call = other, (steps, number, of_mask), axes, groups
        ctx.save_for_backward(x, weight, bias, *vectors, mask)
        return result

    @staticmethod
    def backward(ctx, grad):
        return None, None, None, None, None, *_outside_autocast(_gradients_of_volumes, ctx, grad)


def _keeps_mask(x, weight, axes, groups: int) -> bool:
    """Of an input that wants a gradient; for others see _keeps_output in kept_output.py."""
    if x.device.type not in _GRADIENT_DEVICES:
        return False
    sizes = [
        _output_size(*of_axis) for of_axis in zip(x.shape[2:], weight.shape[2:], *axes, strict=True)
    ]
    count = x.shape[0] * weight.shape[1] * groups * _math.prod(sizes)
    return min(sizes) > 0 and count >= _LEAST_KEPT


def _count_masked_flops(x_shape, weight_shape, *args, out_shape=None, **kwargs) -> int:
    return _count_volume_flops(x_shape, weight_shape, out_shape=out_shape[0])


def _run_masked(x, weight, bias, axes, groups: int) -> tuple:
    """(the result, as _run_volumes has it; the mask, or None where the kernels leave none)"""
    namespace, numbers = getattr(torch.ops, _NAMESPACE), [n for axis in axes for n in axis]
    kernels = _declining_operator(namespace, "run_depth_masked", _count_masked_flops, 2)
    with _ALLOCATION:
        found = kernels(x, weight, bias, *numbers, groups, _tf32_allowed())
    made = [t.unflatten(0, (x.shape[0], -1)) if t.numel() > 0 else None for t in found]
    return tuple(made)


def _before_chain(grad, value, vectors, needs, steps, chain: int) -> tuple:
    """(gradient of `value`, from that of its chain, of these steps and of that number; its sums per
    channel or None; gradients of the chain's operands); needs: of the sums, then of the operands.
    The kernels that read no mask as it is are given it in their dtype.
    """
    return _kernel_chain_gradients(grad, value.to(grad.dtype), vectors, needs[0], False, chain)
