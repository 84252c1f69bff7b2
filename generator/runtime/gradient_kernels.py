"""The library of the gradients' kernels: built and loaded when CUDA first asks for a gradient, so
that whoever only runs models forward never builds it. One for all solutions with the same sources.
"""

import torch
from torch.utils.flop_counter import register_flop_formula as _register_flop_formula

from generator.runtime.allocation import _ALLOCATION
from generator.runtime.arguments import _Conv, _conv_output_shape, _make_conv, _new_output
from generator.runtime.build import _load_library
from generator.runtime.generated import GRADIENT_CUDA_SOURCE, GRADIENT_OPERATOR_SOURCE
from generator.runtime.library_sources import _whole_library
from generator.runtime.precision import _tf32_allowed
from generator.runtime.registration import _count_flops

_GRADIENT_NAMESPACE, _GRADIENT_OPERATOR, _GRADIENT_CUDA = _whole_library(
    "tconv_gradients", GRADIENT_CUDA_SOURCE, GRADIENT_OPERATOR_SOURCE
)
_GRADIENT_DEVICES = ("cuda",)  # elsewhere PyTorch's gradients are called


def _with_row_padding(shape, pad_rows: bool) -> tuple:
    """As kernels_src/padded_rows.h has it."""
    return (*shape[:-1], (shape[-1] + 3) // 4 * 4) if pad_rows else tuple(shape)


def _slides(conv: _Conv) -> bool:
    """Does the gradient of the input slide over the output's, which then may have padded rows?"""
    return tuple(conv.stride) == (1, 1)


def _fake_backward(grad, x, weight, *args):
    needs = args[-3:]
    return (
        _new_output(x.shape, x, weight) if needs[0] else x.new_empty((0,)),
        x.new_empty(weight.shape if needs[1] else (0,)),
        x.new_empty((grad.shape[-3] if needs[2] else 0,)),
    )


def _count_backward_flops(
    grad_shape, x_shape, weight_shape, *args, out_shape=None, **kwargs
) -> int:
    """As torch.utils.flop_counter counts PyTorch's own: for input and weight what forward has."""
    return sum(args[-3:-1]) * _count_flops(x_shape, weight_shape)


def _fake_convolve(x, weight, bias, *args):
    pairs = zip(args[0:8:2], args[1:8:2], strict=True)
    return x.new_empty(_conv_output_shape(x, weight, bias, _make_conv(*pairs, args[8])))


def _count_convolve_flops(x_shape, weight_shape, *args, out_shape=None, **kwargs) -> int:
    return _count_flops(x_shape, weight_shape)


def _load_operators(name: str, operator_source: str, cuda_source: str, fakes: dict):
    """(torch.ops.<name> with the operators that are the keys of `fakes`, is it new?)"""
    namespace = getattr(torch.ops, name)
    if "_tconv_registry" in vars(namespace):
        return namespace, False
    _load_library(name, (operator_source,), cuda_source)
    registry = torch.library.Library(name, "FRAGMENT")
    for operator, fake in fakes.items():
        torch.library.register_fake(f"{name}::{operator}", fake, lib=registry)
    namespace._tconv_registry = registry  # keeps it alive
    return namespace, True


def _gradient_library():
    """The namespace with the operators of kernels_src/binding/operator_gradients.cpp."""
    fakes = {"backward": _fake_backward, "convolve": _fake_convolve}
    namespace, new = _load_operators(_GRADIENT_NAMESPACE, _GRADIENT_OPERATOR, _GRADIENT_CUDA, fakes)
    if new:
        _register_flop_formula([namespace.backward])(_count_backward_flops)
        _register_flop_formula([namespace.convolve])(_count_convolve_flops)
    return namespace


def _backward_kernels():
    """The operator `backward`."""
    return _gradient_library().backward.default


def _geometry(conv: _Conv) -> tuple:
    """The operators' arguments from the strides on, up to the TF32 switch."""
    pairs = *conv.stride, *conv.padding, *conv.output_padding, *conv.dilation
    return *pairs, conv.groups, _tf32_allowed()


def _kernel_conv(x, weight, bias, conv: _Conv) -> torch.Tensor:
    """The convolution's output, contiguous, by the library's kernels."""
    convolve = _gradient_library().convolve.default
    with _ALLOCATION:
        return convolve(x, weight, bias, *_geometry(conv))


def _kernel_gradients(grad, x, weight, conv: _Conv, needs) -> tuple:
    """Gradients of x, weight and bias (None where not in `needs`) by the library's kernels; grad is
    that of the convolution's output, of the rank of x, or has rows padded (_with_row_padding).
    """
    kernels = _backward_kernels()
    with _ALLOCATION:
        grads = kernels(
            grad,
            x,
            weight,
            *_geometry(conv),
            *needs,
        )
    return tuple(g if wanted else None for g, wanted in zip(grads, needs, strict=True))
