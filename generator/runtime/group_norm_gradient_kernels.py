"""The library of GroupNorm's gradients: built and loaded when CUDA first asks for them."""

import torch

from generator.runtime.allocation import _ALLOCATION
from generator.runtime.build import _load_library, _short_digest
from generator.runtime.generated import (
    CUDA_SOURCE,
    NORM_GRADIENT_CUDA_SOURCE,
    NORM_GRADIENT_OPERATOR_SOURCE,
)
from generator.runtime.gradient_kernels import _with_shared_lines

_NORM_GRADIENT_CUDA = _with_shared_lines(NORM_GRADIENT_CUDA_SOURCE, CUDA_SOURCE)
_NORM_GRADIENT_NAMESPACE = (
    f"tconv_norm_gradients_{_short_digest(_NORM_GRADIENT_CUDA, NORM_GRADIENT_OPERATOR_SOURCE)}"
)


def _fake_norm_backward(grad, value, weight, num_groups, eps, *needs):
    channels = value.shape[1]
    grads = [value.new_empty((channels if wanted else 0,)) for wanted in needs]
    return value.new_empty(value.shape), *grads


def _norm_backward_kernels():
    """The operator of kernels_src/binding/operator_group_norm_gradient.cpp."""
    namespace = getattr(torch.ops, _NORM_GRADIENT_NAMESPACE)
    if "_tconv_registry" not in vars(namespace):
        _load_library(
            _NORM_GRADIENT_NAMESPACE, (NORM_GRADIENT_OPERATOR_SOURCE,), _NORM_GRADIENT_CUDA
        )
        registry = torch.library.Library(_NORM_GRADIENT_NAMESPACE, "FRAGMENT")
        torch.library.register_fake(
            f"{_NORM_GRADIENT_NAMESPACE}::backward", _fake_norm_backward, lib=registry
        )
        namespace._tconv_registry = registry  # keeps it alive
    return namespace.backward.default


def _kernel_group_norm_gradients(grad, value, weight, num_groups: int, eps: float, needs) -> tuple:
    """Gradients of GroupNorm's input, weight and bias (the last two None where not in `needs`) by
    the library's kernels.
    """
    kernels = _norm_backward_kernels()
    with _ALLOCATION:
        grads = kernels(grad, value, weight, num_groups, eps, *needs)
    wanted = (True, *needs)
    return tuple(g if asked else None for g, asked in zip(grads, wanted, strict=True))
