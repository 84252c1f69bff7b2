"""Transposed convolutions of three dimensions where Hopper's or the CPU's kernel works in place."""

import torch

from generator.runtime.autocast import _autocast_chain, _autocasting
from generator.runtime.build import _NAMESPACE
from generator.runtime.dispatch import _as_operator, _transformed, _wants_gradient
from generator.runtime.volume_gradients import _volumes_with_gradient
from generator.runtime.volume_operator import _run_volumes, _volume_operator

_VOLUME_DEVICES = ("cuda", "cpu")


def _whole_volumes(other, call: str, chain, x, weight, bias, axes, groups: int, vectors):
    """The contiguous result for x [batch, channels, depth, height, width]; None where another way
    is to be taken: for a compiler, a transform, and what the kernel does not serve.

    other(x, weight, bias, axes, groups, vectors): that way. call: what tells the operator's name
    from others. chain: the steps after the convolution, and their number in the library of their
    gradients.
    """
    if x.device.type not in _VOLUME_DEVICES or _as_operator() or _transformed():
        return None
    if _autocasting():
        x, (weight, bias), vectors = _autocast_chain(x, (weight, bias), vectors)
    kernels = _volume_operator(getattr(torch.ops, _NAMESPACE), call)
    if _wants_gradient(x, weight, bias, *vectors):
        return _volumes_with_gradient(kernels, other, chain, axes, groups, x, weight, bias, vectors)
    return _run_volumes(kernels, x, weight, bias, axes, groups, vectors)
