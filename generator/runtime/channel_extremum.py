"""A minimum or maximum over channels that alone reads what the kernel of a convolution computes:
where the Hopper kernel runs and no gradient is wanted, it forms that in the place of its outputs.
"""

import torch

from generator.runtime.arguments import _make_conv
from generator.runtime.autocast import _autocast_chain, _autocasting
from generator.runtime.build import _NAMESPACE
from generator.runtime.dispatch import _as_operator, _transformed, _wants_gradient
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
    found = _fused_extremum(call, kind, x, weight, bias, rest[:5], rest[5:])
    if found is not None:
        return found if keepdim else found.squeeze(1)
    value = operator(x, weight, bias, *rest)
    reduced = reduce(_with_batch_dimension(value) if broadcasts else value, dim, keepdim)
    return reduced[0] if isinstance(reduced, tuple) else reduced


def _fused_extremum(call, kind, x, weight, bias, conv, vectors):
    """[batch, 1, height, width], or None where PyTorch's operator is to reduce."""
    if x.device.type not in _EXTREMUM_DEVICES or _as_operator() or _transformed():
        return None
    if x.dim() != 4 or _wants_gradient(x, weight, bias, *vectors):
        return None
    if _autocasting():
        x, (weight, bias), vectors = _autocast_chain(x, (weight, bias), vectors)
    namespace = getattr(torch.ops, _NAMESPACE)
    kernels = _declining_operator(namespace, f"extremum{call}", _count_extremum_flops)
    conv, kind = _make_conv(*conv), _EXTREMA[kind]
    out = _make_run(kernels)(x, weight, bias, conv, kind, *vectors)
    return out if out.numel() > 0 else None


def _count_extremum_flops(x_shape, weight_shape, *args, out_shape=None, **kwargs) -> int:
    """Of the convolution; nothing where the operator declines."""
    return 0 if out_shape is None or 0 in out_shape else _count_flops(x_shape, weight_shape)
