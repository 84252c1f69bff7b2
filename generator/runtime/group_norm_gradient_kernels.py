"""The library of the gradients through element-wise steps and GroupNorm: built and loaded when CUDA
first asks for them.
"""

from generator.runtime.allocation import _ALLOCATION
from generator.runtime.build import _short_digest
from generator.runtime.generated import (
    CUDA_SOURCE,
    NORM_GRADIENT_CUDA_SOURCE,
    NORM_GRADIENT_OPERATOR_SOURCE,
)
from generator.runtime.gradient_kernels import _load_operators, _with_shared_lines

_NORM_GRADIENT_CUDA = _with_shared_lines(NORM_GRADIENT_CUDA_SOURCE, CUDA_SOURCE)
_NORM_GRADIENT_NAMESPACE = (
    f"tconv_norm_gradients_{_short_digest(_NORM_GRADIENT_CUDA, NORM_GRADIENT_OPERATOR_SOURCE)}"
)


def _fake_norm_backward(grad, value, weight, num_groups, eps, *needs_and_chain):
    channels = value.shape[1]
    grads = [value.new_empty((channels if wanted else 0,)) for wanted in needs_and_chain[:-1]]
    return value.new_empty(value.shape), *grads


def _norm_backward_kernels():
    """The operator of kernels_src/binding/operator_group_norm_gradient.cpp."""
    fakes = {"backward": _fake_norm_backward}
    namespace, _ = _load_operators(
        _NORM_GRADIENT_NAMESPACE, NORM_GRADIENT_OPERATOR_SOURCE, _NORM_GRADIENT_CUDA, fakes
    )
    return namespace.backward.default


def _kernel_group_norm_gradients(
    grad, value, weight, num_groups: int, eps: float, needs, chain: int
) -> tuple:
    """Gradients of `value`, whose `chain` GroupNorm normalised, of GroupNorm's weight and bias, and
    the first one's sums per channel (the last three None where not in `needs`).
    """
    kernels = _norm_backward_kernels()
    with _ALLOCATION:
        grads = kernels(grad, value, weight, num_groups, eps, *needs, chain)
    wanted = (True, *needs)
    return tuple(g if asked else None for g, asked in zip(grads, wanted, strict=True))
