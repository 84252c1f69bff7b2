"""aten.mean over an output's positions. All that it is taken of have one gradient: it is expanded,
where PyTorch's is written out, and the kernels of the convolution's gradients read it where it
lies.
"""

import math as _math

import torch

from generator.runtime.dispatch import _as_operator, _transformed, _wants_gradient


def _mean(x, dims, keepdim: bool = False):
    if not x.is_cuda or _as_operator() or _transformed() or not _wants_gradient(x):
        return torch.ops.aten.mean.dim(x, dims, keepdim)
    return _Mean.apply(x, dims, keepdim)


class _Mean(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, dims, keepdim):
        ctx.of_call = x.shape, dims, keepdim
        return torch.ops.aten.mean.dim(x, dims, keepdim)

    @staticmethod
    def backward(ctx, grad):
        shape, dims, keepdim = ctx.of_call
        axes = sorted(dim % len(shape) for dim in dims)
        grad = grad / _math.prod(shape[axis] for axis in axes)
        for axis in () if keepdim else axes:
            grad = grad.unsqueeze(axis)
        return grad.expand(shape), None, None
