"""When a training step keeps the convolution's output for backward: computing it again would take
longer than fused kernels save. On CUDA it is then computed by itself, on a CPU left by the kernels.
"""

import math as _math

import torch

from generator.runtime.arguments import _output_size
from generator.runtime.batch_norm_pool_gradient_kernels import _kernels_pool
from generator.runtime.gradient_kernels import _GRADIENT_DEVICES

_LEAST_KEPT = 1 << 20  # values; for fewer a launch costs more


def _keeps_output(x, weight, conv, pool, parameters) -> bool:
    """Not where no kernel of ours reads it in backward, dtypes are mixed, or the operator refuses;
    nor for an input that wants no gradient: forwards of a model with gradients enabled and none
    asked for, as benchmark suites time them, take the fused kernels. `parameters`: those besides
    the weight, or None.
    """
    if not x.requires_grad:
        return False
    if x.device.type in _GRADIENT_DEVICES:
        if not _kernels_pool(pool):
            return False
    elif x.device.type != "cpu" or x.dtype not in (torch.float32, torch.float64):
        return False
    if x.dim() != 4 or weight.dim() != 4:
        return False
    if any(p is not None and p.dtype is not x.dtype for p in (weight, *parameters)):
        return False
    shape = _conv_shape(x, weight, conv)
    return min(shape) > 0 and _math.prod(shape) >= _LEAST_KEPT


def _conv_shape(x, weight, conv) -> list:
    """Of the convolution's output, of a batched x."""
    sizes = [
        _output_size(x.shape[2 + axis], weight.shape[2 + axis], *(pair[axis] for pair in conv[:4]))
        for axis in range(2)
    ]
    return [x.shape[0], weight.shape[1] * conv[4], *sizes]
