"""When a training step computes the convolution by itself and keeps its output for backward, on
CUDA: computing it again would take longer than fused kernels save.
"""

import math as _math

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
    if x.device.type not in _GRADIENT_DEVICES or not _kernels_pool(pool):
        return False
    if x.dim() != 4 or weight.dim() != 4:
        return False
    if any(p is not None and p.dtype is not x.dtype for p in (weight, *parameters)):
        return False
    sizes = [
        _output_size(x.shape[2 + axis], weight.shape[2 + axis], *(pair[axis] for pair in conv[:4]))
        for axis in range(2)
    ]
    channels = weight.shape[1] * conv[4]
    return min(sizes) > 0 and x.shape[0] * channels * _math.prod(sizes) >= _LEAST_KEPT
