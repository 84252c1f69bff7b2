"""The library of the gradients through BatchNorm, activation, max-pool and GroupNorm: built and
loaded when CUDA first asks for them.
"""

from generator.runtime.allocation import _ALLOCATION
from generator.runtime.generated import POOL_GRADIENT_CUDA_SOURCE, POOL_GRADIENT_OPERATOR_SOURCE
from generator.runtime.gradient_kernels import (
    _GRADIENT_CUDA,
    _load_operators,
    _with_row_padding,
)
from generator.runtime.library_sources import _whole_library

_POOL_GRADIENTS = _whole_library(
    "tconv_pool_gradients",
    POOL_GRADIENT_CUDA_SOURCE,
    POOL_GRADIENT_OPERATOR_SOURCE,
    GRADIENT_CUDA_SOURCE=_GRADIENT_CUDA,
)
_LARGEST_WINDOW = 256  # the place of a maximum in it is kept as a byte


def _fake_pool_backward(grad, value, *args):
    channels = value.shape[1]
    grads = [value.new_empty((channels if wanted else 0,)) for wanted in args[-7:-2]]
    return value.new_empty(_with_row_padding(value.shape, args[-2])), *grads


def _pool_backward_kernels():
    """The operator of kernels_src/binding/operator_batch_norm_pool_gradient.cpp."""
    fakes = {"backward": _fake_pool_backward}
    namespace, _ = _load_operators(*_POOL_GRADIENTS, fakes)
    return namespace.backward.default


def _kernels_pool(pool) -> bool:
    """Do they know these windows: apart from one another, none beyond the image's first values?"""
    kernel, stride, padding, dilation, _ = pool
    apart = all(step >= size for step, size in zip(stride, kernel, strict=True))
    small = kernel[0] * kernel[1] <= _LARGEST_WINDOW
    return apart and small and tuple(padding) == (0, 0) and tuple(dilation) == (1, 1)


def _kernel_pool_gradients(
    grad, value, norm, pool, group_norm, needs, pad_rows: bool, activation: int
) -> tuple:
    """Gradients of `value`, which BatchNorm read, of BatchNorm's weight and bias, of GroupNorm's,
    and the first one's sums per channel (all but the first None where not in `needs`).

    norm: (weight, bias, mean, variance, use_batch_stats, eps), of which the batch's statistics may
    be None; group_norm: (weight, num_groups, eps); pad_rows: the first one has whole vectors of
    columns, zeros behind its own; activation: its number in the library.
    """
    kernels = _pool_backward_kernels()
    kernel, stride = pool[:2]
    with _ALLOCATION:
        grads = kernels(
            *(grad, value, *norm, *kernel, *stride, *group_norm, *needs, pad_rows, activation)
        )
    wanted = (True, *needs)
    return tuple(g if asked else None for g, asked in zip(grads, wanted, strict=True))
