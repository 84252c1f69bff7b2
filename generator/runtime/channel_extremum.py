"""A minimum or maximum over channels that alone reads what the kernel of a convolution computes:
where the Hopper kernel runs it forms that in the place of its outputs, which backward computes.
"""

import torch

from generator.runtime.arguments import _make_conv
from generator.runtime.autocast import _autocast_chain, _autocasting
from generator.runtime.build import _NAMESPACE
from generator.runtime.dispatch import (
    _as_operator,
    _outside_autocast,
    _transformed,
    _wants_gradient,
)
from generator.runtime.forward import _with_batch_dimension
from generator.runtime.operator_forms import _make_run
from generator.runtime.registration import _count_flops
from generator.runtime.volume_operator import _declining_operator

_EXTREMUM_DEVICES = ("cuda",)
_EXTREMA = {"least": 1, "most": 2}  # Extremum in kernels_src/call.h


def _channel_extremum(operator, call, kind, reduction, broadcasts, x, weight, bias, *rest):
    """What PyTorch's `reduction` (an operator, its dim, its keepdim) makes of operator(x, weight,
    bias, *rest). call: what tells the operator's name from others; broadcasts: is a result without
    a batch given one, as an operand of the chain asks for?
    """
    reduce, dim, keepdim = reduction
    conv, vectors = rest[:5], rest[5:]

    def reduced(x, weight, bias, *vectors):
        value = operator(x, weight, bias, *conv, *vectors)
        found = reduce(_with_batch_dimension(value) if broadcasts else value, dim, keepdim)
        return found[0] if isinstance(found, tuple) else found

    found = _fused_extremum(call, kind, x, weight, bias, conv, vectors)
    if found is None:
        return reduced(x, weight, bias, *vectors)
    found = found if keepdim else found.squeeze(1)
    if not _wants_gradient(x, weight, bias, *vectors):
        return found
    return _Extremum.apply(lambda: found, reduced, x, weight, bias, *vectors)


def _fused_extremum(call, kind, x, weight, bias, conv, vectors):
    """[batch, 1, height, width] without a gradient, or None where PyTorch's operator is to reduce:
    under autocast, too, where a gradient is wanted.
    """
    if x.device.type not in _EXTREMUM_DEVICES or _as_operator() or _transformed() or x.dim() != 4:
        return None
    if _autocasting():
        if _wants_gradient(x, weight, bias, *vectors):
            return None
        x, (weight, bias), vectors = _autocast_chain(x, (weight, bias), vectors)
    namespace = getattr(torch.ops, _NAMESPACE)
    kernels = _declining_operator(namespace, f"extremum{call}", _count_extremum_flops)
    conv, kind = _make_conv(*conv), _EXTREMA[kind]
    with torch.no_grad():
        out = _make_run(kernels)(x, weight, bias, conv, kind, *vectors)
    return out if out.numel() > 0 else None


class _Extremum(torch.autograd.Function):
    """made(), of the operands; reduced(*operands) is the same by the convolution and PyTorch's
    operator behind it, whose gradients are taken.
    """

    @staticmethod
    def forward(ctx, made, reduced, *operands):
        ctx.reduced = reduced
        ctx.save_for_backward(*operands)
        return made()

    @staticmethod
    def backward(ctx, grad):
        return None, None, *_outside_autocast(_gradients_of_extremum, ctx, grad)


def _gradients_of_extremum(ctx, grad) -> list:
    """Of the operands, those that are wanted; with create_graph=True as functions of them: of
    views, for one tensor may come twice, or be computed from another one.
    """
    needs, differentiable = ctx.needs_input_grad[2:], torch.is_grad_enabled()
    operands = []
    for tensor, need in zip(ctx.saved_tensors, needs, strict=True):
        if tensor is not None:
            tensor = tensor.view_as(tensor) if differentiable else tensor.detach()
            tensor = tensor if differentiable else tensor.requires_grad_(need)
        operands.append(tensor)
    with torch.enable_grad():
        out = ctx.reduced(*operands)
    wanted = [tensor for tensor, need in zip(operands, needs, strict=True) if need]
    found = iter(torch.autograd.grad(out, wanted, grad, create_graph=differentiable))
    return [next(found) if need else None for need in needs]


def _count_extremum_flops(x_shape, weight_shape, *args, out_shape=None, **kwargs) -> int:
    """Of the convolution; nothing where the operator declines."""
    return 0 if out_shape is None or 0 in out_shape else _count_flops(x_shape, weight_shape)
