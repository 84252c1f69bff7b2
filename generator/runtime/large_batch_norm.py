"""BatchNorm in fp32 by a batch's statistics, its gradients, and where none is wanted softmax over
rows behind it, by a library of kernels that is built when first called: where those are faster than
PyTorch's.
"""

import torch
from torch import nn as _nn

from generator.runtime.allocation import _ALLOCATION
from generator.runtime.dispatch import (
    _as_operator,
    _outside_autocast,
    _transformed,
    _wants_gradient,
)
from generator.runtime.generated import BATCH_NORM_CUDA_SOURCE, BATCH_NORM_OPERATOR_SOURCE
from generator.runtime.gradient_kernels import _GRADIENT_CUDA, _load_operators
from generator.runtime.large_layers import _fits_channels, _is_hopper, _is_plain_layer
from generator.runtime.library_sources import _whole_library

# Measured on an H200: on fewer values of a channel, or of a tensor, PyTorch's is as fast.
_MANY_OF_CHANNEL, _MANY_VALUES, _MOST_VALUES = 1 << 16, 1 << 21, 1 << 31
_LEAST_OF_PLANE = 64  # a warp works on a plane, or a part of one
_SOFTMAX_WIDTHS = (64, 128, 256, 512)
_BATCH_NORM = _whole_library(
    "tconv_batch_norm",
    BATCH_NORM_CUDA_SOURCE,
    BATCH_NORM_OPERATOR_SOURCE,
    GRADIENT_CUDA_SOURCE=_GRADIENT_CUDA,
)


def _large_batch_norm(module, x, softmax=None):
    """module(x), or softmax(module(x)), by the kernels where it pays."""
    joined = False
    if not _kernels_serve(module, x):
        y = module(x)
    elif _wants_gradient(x, module.weight, module.bias):
        y = _BatchNorm.apply(x, module.weight, module.bias, module)
    else:
        joined = softmax is not None and _is_over_rows(softmax, x)
        y = _normalised(module, x, joined)
    return y if softmax is None or joined else softmax(y)


def _kernels_serve(module, x) -> bool:
    """Training mode of large tensors, eagerly?"""
    if _as_operator() or _transformed():
        return False
    kind = {3: _nn.BatchNorm1d, 4: _nn.BatchNorm2d, 5: _nn.BatchNorm3d}.get(x.dim())
    return _is_plain_layer(module, kind) and module.training and _norm_pays(module, x)


def _normalised(module, x, softmax):
    """By the kernels, as nn.BatchNorm2d counts batches and keeps statistics."""
    normalise = _batch_norm_library().normalise.default
    moved = _counted_batch(module)
    with _ALLOCATION:
        return normalise(x, module.weight, module.bias, *moved, module.eps, softmax)


def _counted_batch(module) -> tuple:
    """Counts a batch; what moves by it: (running_mean, running_var, the count or None where the
    momentum is not its inverse, the momentum).
    """
    keeps, counted, momentum = module.track_running_stats, None, module.momentum
    if keeps and module.num_batches_tracked is not None:
        module.num_batches_tracked.add_(1)
        counted = module.num_batches_tracked if momentum is None else None
    running = (module.running_mean, module.running_var) if keeps else (None, None)
    return *running, counted, momentum or 0.0


class _BatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, module):
        ctx.save_for_backward(x, weight, bias)
        ctx.eps = module.eps
        return _normalised(module, x, False)

    @staticmethod
    def backward(ctx, grad):
        return *_outside_autocast(_gradients_of_batch_norm, ctx, grad), None


def _gradients_of_batch_norm(ctx, grad) -> list:
    """Of x, weight and bias, those that are wanted."""
    (x, weight, bias), needs = ctx.saved_tensors, ctx.needs_input_grad[:3]
    if torch.is_grad_enabled():  # create_graph=True
        return _differentiated_batch_norm(x, weight, bias, ctx.eps, grad, needs)
    kernels = _batch_norm_library().backward.default
    with _ALLOCATION:
        grads = kernels(grad, x, weight, ctx.eps, *needs[1:])
    return [g if wanted else None for g, wanted in zip(grads, needs, strict=True)]


def _differentiated_batch_norm(x, weight, bias, eps, grad, needs) -> list:
    """The same by PyTorch's operator, as functions of x, weight, bias and grad: of views, for one
    tensor may come twice, or be computed from another one.
    """
    views = [None if tensor is None else tensor.view_as(tensor) for tensor in (x, weight, bias)]
    out, _, _ = torch.ops.aten.native_batch_norm.default(*views, None, None, True, 0.0, eps)
    wanted = [view for view, need in zip(views, needs, strict=True) if need]
    found = iter(torch.autograd.grad(out, wanted, grad, create_graph=True))
    return [next(found) if need else None for need in needs]


def _is_over_rows(softmax, x) -> bool:
    """Is it what the kernels know?"""
    over_rows = _is_plain_layer(softmax, _nn.Softmax) and softmax.dim in (-1, 3)
    return x.dim() == 4 and over_rows and x.shape[3] in _SOFTMAX_WIDTHS and x.data_ptr() % 16 == 0


def _fake_normalise(value, *args):
    return torch.empty_like(value, memory_format=torch.contiguous_format)


def _fake_batch_norm_backward(grad, value, weight, eps, *needs):
    vectors = [value.new_empty((value.shape[1] if wanted else 0,)) for wanted in needs]
    return _fake_normalise(value), *vectors


def _batch_norm_library():
    """The namespace with the operators of kernels_src/binding/operator_batch_norm.cpp."""
    fakes = {"normalise": _fake_normalise, "backward": _fake_batch_norm_backward}
    namespace, _ = _load_operators(*_BATCH_NORM, fakes)
    return namespace


def _norm_pays(module, x) -> bool:
    """Measured on Hopper, for contiguous tensors."""
    return (
        x.is_cuda
        and x.dim() in (3, 4, 5)
        and _MANY_VALUES <= x.numel() <= _MOST_VALUES
        and x.numel() >= _MANY_OF_CHANNEL * x.shape[1]
        and x.numel() >= _LEAST_OF_PLANE * x.shape[0] * x.shape[1]
        and x.shape[1] == module.num_features
        and x.dtype == torch.float32
        and x.is_contiguous()
        and all(_fits_channels(v, x) for v in (module.weight, module.bias))
        and all(_fits_channels(v, x) for v in (module.running_mean, module.running_var))
        and (module.running_mean is None) == (module.running_var is None)
        and _is_hopper(x.device.index)
    )
