"""The library of the gradients' kernels: built and loaded when CUDA first asks for a gradient, so
that whoever only runs models forward never builds it. One for all solutions with the same sources.
"""

import torch

from generator.runtime.allocation import _ALLOCATION
from generator.runtime.arguments import _Conv
from generator.runtime.build import _load_library, _short_digest
from generator.runtime.generated import GRADIENT_CUDA_SOURCE, GRADIENT_OPERATOR_SOURCE
from generator.runtime.precision import _tf32_allowed

_GRADIENT_NAMESPACE = (
    f"tconv_gradients_{_short_digest(GRADIENT_CUDA_SOURCE, GRADIENT_OPERATOR_SOURCE)}"
)
_GRADIENT_DEVICES = ("cuda",)  # elsewhere PyTorch's gradients are called


def _fake_backward(grad, x, weight, *args):
    out_channels = grad.shape[-3]
    shapes = (x.shape, weight.shape, (out_channels,))
    return tuple(
        x.new_empty(shape if wanted else (0,))
        for shape, wanted in zip(shapes, args[-3:], strict=True)
    )


def _backward_kernels():
    """The operator `backward` of kernels_src/binding/operator_gradients.cpp."""
    namespace = getattr(torch.ops, _GRADIENT_NAMESPACE)
    if "_tconv_registry" not in vars(namespace):
        _load_library(_GRADIENT_NAMESPACE, (GRADIENT_OPERATOR_SOURCE,), GRADIENT_CUDA_SOURCE)
        registry = torch.library.Library(_GRADIENT_NAMESPACE, "FRAGMENT")
        torch.library.register_fake(
            f"{_GRADIENT_NAMESPACE}::backward", _fake_backward, lib=registry
        )
        namespace._tconv_registry = registry  # keeps it alive
    return namespace.backward.default


def _kernel_gradients(grad, x, weight, conv: _Conv, needs) -> tuple:
    """Gradients of x, weight and bias (None where not in `needs`) by the library's kernels; grad is
    that of the convolution's output, of the rank of x.
    """
    kernels = _backward_kernels()
    with _ALLOCATION:
        grads = kernels(
            grad,
            x,
            weight,
            *conv.stride,
            *conv.padding,
            *conv.output_padding,
            *conv.dilation,
            conv.groups,
            _tf32_allowed(),
            *needs,
        )
    return tuple(g if wanted else None for g, wanted in zip(grads, needs, strict=True))
