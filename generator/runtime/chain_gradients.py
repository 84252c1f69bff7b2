"""Gradients of a convolution and of what follows it, a chain of element-wise steps or GroupNorm
behind one, by one operator of the gradients' library, which then has the chains, too
(kernels_src/binding/operator_chain_gradients.h).
"""

import torch
from torch.utils.flop_counter import register_flop_formula as _register_flop_formula

from generator.runtime.allocation import _ALLOCATION
from generator.runtime.arguments import _Conv
from generator.runtime.gradient_kernels import (
    _GRADIENT_NAMESPACE,
    _fake_backward,
    _geometry,
    _gradient_library,
)
from generator.runtime.registration import _count_flops

_MOST_VECTORS = 4  # kMaxChannelVectors in kernels_src/call.h
_OF_BACKWARD = 13  # arguments behind the weight that the operator `backward` has, too
_NO_NORM = (None, 0, 0.0)  # GroupNorm's weight, number of groups and eps where there is none


def _fake_chain_backward(grad, x, weight, *args):
    of_conv, behind = args[:_OF_BACKWARD], args[_OF_BACKWARD:]
    vectors, (*needs, _, _) = behind[4 : 4 + _MOST_VECTORS], behind[4 + _MOST_VECTORS :]
    channels = grad.shape[1]
    count = sum(vector is not None for vector in vectors)
    return (
        *_fake_backward(grad, x, weight, *of_conv),
        *[x.new_empty((channels if wanted else 0,)) for wanted in needs],
        x.new_empty((count, channels)),
    )


def _count_chain_flops(grad_shape, x_shape, weight_shape, *args, out_shape=None, **kwargs) -> int:
    """Of the convolution's output, where the chain reads nothing else, and of its gradients."""
    times = (args[-1] is None) + sum(args[_OF_BACKWARD - 3 : _OF_BACKWARD - 1])
    return times * _count_flops(x_shape, weight_shape)


def _chain_kernels():
    """The operator `chain_backward`."""
    namespace = _gradient_library()
    if "_tconv_chains" not in vars(namespace):
        name = f"{_GRADIENT_NAMESPACE}::chain_backward"
        torch.library.register_fake(name, _fake_chain_backward, lib=namespace._tconv_registry)
        _register_flop_formula([namespace.chain_backward])(_count_chain_flops)
        namespace._tconv_chains = True
    return namespace.chain_backward.default


def _kernel_chained_gradients(
    grad, tensors, conv: _Conv, needs, norm, norm_needs, vectors, chain: int, value=None
) -> tuple:
    """(gradients of `tensors`, which are x, weight and bias; of GroupNorm's weight and bias; of the
    operands of the `chain` of that number). `norm`: GroupNorm's weight, number of groups and eps.
    value: what the chain's gradient reads, where that is not the convolution's output. None for a
    gradient that is not in `needs` or `norm_needs`.
    """
    x, weight, bias = tensors
    batched = x if x.dim() == 4 else x.unsqueeze(0)
    given = *vectors, *[None] * (_MOST_VECTORS - len(vectors))
    kernels = _chain_kernels()
    with _ALLOCATION:
        *grads, of_vectors = kernels(
            *(grad, batched, weight, *_geometry(conv), *needs),
            *(bias, *norm, *given, *norm_needs, chain, value),
        )
    wanted = (*needs, *norm_needs)
    grad_x, *rest = [g if asked else None for g, asked in zip(grads, wanted, strict=True)]
    if needs[0] and batched is not x:
        grad_x = grad_x.view(x.shape)
    return (grad_x, *rest[:2]), tuple(rest[2:]), list(of_vectors.unbind(0))
