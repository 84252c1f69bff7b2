"""nn.GroupNorm and nn.InstanceNorm that no kernel of the convolution takes along, and their
gradients, by a library of kernels that is built when first called: where those are faster than
PyTorch's.
"""

import math as _math

import torch
from torch import nn as _nn

from generator.runtime.allocation import _ALLOCATION
from generator.runtime.dispatch import (
    _as_operator,
    _outside_autocast,
    _transformed,
    _wants_gradient,
)
from generator.runtime.generated import GROUP_NORM_CUDA_SOURCE, GROUP_NORM_OPERATOR_SOURCE
from generator.runtime.gradient_kernels import _GRADIENT_CUDA, _load_operators
from generator.runtime.large_layers import _fits_channels, _is_hopper, _is_plain_layer
from generator.runtime.library_sources import _whole_library

# By the dimensions of what they take with samples.
_INSTANCE_NORMS = {3: _nn.InstanceNorm1d, 4: _nn.InstanceNorm2d, 5: _nn.InstanceNorm3d}
# Measured on an H200 on these many and more, forward and backward, in fp32 and in fp16: PyTorch's
# forward has a block for each group of a sample.
_MANY_NORMED, _MOST_NORMED = 1 << 20, 1 << 31
_GROUP_NORM = _whole_library(
    "tconv_group_norm",
    GROUP_NORM_CUDA_SOURCE,
    GROUP_NORM_OPERATOR_SOURCE,
    GRADIENT_CUDA_SOURCE=_GRADIENT_CUDA,
)


def _large_group_norm(module, x):
    """module(x), by the kernels where it pays."""
    if _as_operator() or _transformed():
        return module(x)
    num_groups = _num_groups(module, x)
    if not (num_groups and _group_norm_pays(module, x)):
        return module(x)
    given = x, module.weight, module.bias, num_groups, module.eps
    return _GroupNorm.apply(*given) if _wants_gradient(*given[:3]) else _group_normalised(*given)


def _num_groups(module, x) -> int:
    """Of the GroupNorm that module(x) is, or 0. InstanceNorm without running statistics is one of a
    group for each channel; of one position its error is PyTorch's.
    """
    if _is_plain_layer(module, _nn.GroupNorm):
        return module.num_groups if x.shape[1] == module.num_channels else 0
    if not _is_plain_layer(module, _INSTANCE_NORMS.get(x.dim())):
        return 0
    of_sample = not module.track_running_stats and module.running_mean is None
    fits = x.shape[1] == module.num_features and _math.prod(x.shape[2:]) > 1
    return x.shape[1] if of_sample and fits else 0


def _group_normalised(x, weight, bias, num_groups: int, eps: float):
    with _ALLOCATION:
        return _group_norm_library().normalise.default(x, weight, bias, num_groups, eps)


class _GroupNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, num_groups, eps):
        ctx.save_for_backward(x, weight, bias)
        ctx.of_call = num_groups, eps
        return _group_normalised(x, weight, bias, num_groups, eps)

    @staticmethod
    def backward(ctx, grad):
        return *_outside_autocast(_gradients_of_group_norm, ctx, grad), None, None


def _gradients_of_group_norm(ctx, grad) -> list:
    """Of x, weight and bias, those that are wanted."""
    (x, weight, bias), (num_groups, eps) = ctx.saved_tensors, ctx.of_call
    needs = ctx.needs_input_grad[:3]
    if torch.is_grad_enabled():  # create_graph=True
        return _differentiated_group_norm(x, weight, bias, num_groups, eps, grad, needs)
    kernels = _group_norm_library().backward.default
    with _ALLOCATION:
        grads = kernels(grad, x, weight, num_groups, eps, *needs[1:])
    return [g if wanted else None for g, wanted in zip(grads, needs, strict=True)]


def _differentiated_group_norm(x, weight, bias, num_groups, eps, grad, needs) -> list:
    """The same by PyTorch's operator, as functions of x, weight, bias and grad: of views, for one
    tensor may come twice, or be computed from another one.
    """
    views = [None if tensor is None else tensor.view_as(tensor) for tensor in (x, weight, bias)]
    sizes = x.shape[0], x.shape[1], x.numel() // (x.shape[0] * x.shape[1])
    out, _, _ = torch.ops.aten.native_group_norm.default(*views, *sizes, num_groups, eps)
    wanted = [view for view, need in zip(views, needs, strict=True) if need]
    found = iter(torch.autograd.grad(out, wanted, grad, create_graph=True))
    return [next(found) if need else None for need in needs]


def _fake_group_normalise(value, *args):
    return torch.empty_like(value, memory_format=torch.contiguous_format)


def _fake_group_norm_backward(grad, value, weight, num_groups, eps, *needs):
    vectors = [value.new_empty((value.shape[1] if wanted else 0,)) for wanted in needs]
    return _fake_group_normalise(value), *vectors


def _group_norm_library():
    """The namespace with the operators of kernels_src/binding/operator_group_norm.cpp."""
    fakes = {"normalise": _fake_group_normalise, "backward": _fake_group_norm_backward}
    namespace, _ = _load_operators(*_GROUP_NORM, fakes)
    return namespace


def _group_norm_pays(module, x) -> bool:
    """Measured on Hopper, for contiguous tensors."""
    return (
        x.is_cuda
        and x.dim() > 2
        and _MANY_NORMED <= x.numel() < _MOST_NORMED
        and _num_groups(module, x) > 0
        and x.dtype in (torch.float32, torch.float16, torch.bfloat16)
        and (x.dtype == torch.float32 or not torch.is_autocast_enabled(x.device.type))
        and x.is_contiguous()
        and all(_fits_channels(vector, x) for vector in (module.weight, module.bias))
        and _is_hopper(x.device.index)
    )
