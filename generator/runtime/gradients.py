"""Backward formulas, on values recomputed from the inputs: of the convolution by our own kernels
where the solution has them, of all else by ATen's backward operators.
"""

import torch

from generator.runtime.arguments import _Conv
from generator.runtime.gradient_kernels import (
    _GRADIENT_DEVICES,
    _kernel_conv,
    _kernel_gradients,
)


def _batched(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dim() == 4 else tensor.unsqueeze(0)


def _own_kernels(x) -> bool:
    """Not with create_graph=True: ATen's operators have derivatives of their own."""
    return x.device.type in _GRADIENT_DEVICES and not torch.is_grad_enabled()


def _conv_output(x, weight, bias, conv: _Conv) -> torch.Tensor:
    """The convolution's output [batch, out_channels, out_h, out_w]."""
    if _own_kernels(x):
        return _kernel_conv(_batched(x), weight, bias, conv)
    return torch.convolution(
        _batched(x),
        weight,
        bias,
        conv.stride,
        conv.padding,
        conv.dilation,
        True,
        conv.output_padding,
        conv.groups,
    )


def _conv_gradients(grad, x, weight, conv: _Conv, needs) -> tuple:
    """Gradients of x, weight and bias (None where not in `needs`), for grad [batch, out_channels,
    out_h, out_w].
    """
    if True not in needs:
        return None, None, None
    batched = x if x.dim() == 4 else x.unsqueeze(0)
    if _own_kernels(x):
        grads = _kernel_gradients(grad, batched, weight, conv, needs)
        return grads if batched is x or not needs[0] else (grads[0].view(x.shape), *grads[1:])
    if x.device.type == "cpu" and not batched.is_contiguous():
        # oneDNN reads beyond a contiguous gradient beside a channels_last input (PyTorch 2.13).
        if batched.is_contiguous(memory_format=torch.channels_last):
            grad = grad.contiguous(memory_format=torch.channels_last)
    grads = torch.ops.aten.convolution_backward.default(
        grad,
        batched,
        weight,
        [grad.shape[1]],
        conv.stride,
        conv.padding,
        conv.dilation,
        True,
        conv.output_padding,
        conv.groups,
        needs,
    )
    return grads if batched is x or not needs[0] else (grads[0].view(x.shape), *grads[1:])


def _conv_gradients_with(sums, grad, x, weight, conv: _Conv, needs) -> tuple:
    """The same where the bias's gradient may be there already: `sums`, or None."""
    if sums is None:
        return _conv_gradients(grad, x, weight, conv, needs)
    return *_conv_gradients(grad, x, weight, conv, (*needs[:2], False))[:2], sums


def _no_gradients(tensors) -> list:
    """Of an empty batch."""
    return [None if tensor is None else torch.zeros_like(tensor) for tensor in tensors]


def _chain_needs_values(chain) -> bool:
    return any(step.needs_values for step in chain)


def _chain_forward(chain, value, vectors) -> list:
    """[value, value after step 0, value after step 1, ...]"""
    values = [value]
    for step in chain:
        values.append(step.forward(values[-1], vectors))
    return values


def _chain_backward(chain, grad, values, vectors) -> tuple:
    """(gradient of the convolution's output, gradients of the vectors); `values` may be None where
    no step looks.
    """
    vector_grads = [None] * len(vectors)
    for index in reversed(range(len(chain))):
        before, after = (None, None) if values is None else (values[index], values[index + 1])
        grad = chain[index].backward(grad, before, after, vectors, vector_grads)
    return grad, vector_grads


def _group_norm_gradients(grad, value, weight, num_groups: int, eps: float, needs) -> tuple:
    """Gradients of GroupNorm's input, weight and bias; the last two only where `needs` says so."""
    if torch.is_grad_enabled():  # create_graph=True: ATen's operator has no derivative of its own
        return _differentiable_group_norm_gradients(grad, value, weight, num_groups, eps)
    batch, channels, height, width = value.shape
    sizes = batch, channels, height * width, num_groups
    _, mean, rstd = torch.ops.aten.native_group_norm.default(value, None, None, *sizes, eps)
    return torch.ops.aten.native_group_norm_backward.default(
        grad.contiguous(), value, mean, rstd, weight, *sizes, [True, *needs]
    )


def _differentiable_group_norm_gradients(grad, value, weight, num_groups: int, eps: float) -> tuple:
    """The same from plain tensor arithmetic, per group with normalised values n and g = grad *
    weight:

    rstd * (g - mean(g) - n * mean(g * n))
    """
    grouped = value.unflatten(1, (num_groups, -1)).flatten(2)
    variance, mean = torch.var_mean(grouped, 2, correction=0, keepdim=True)
    rstd = (variance + eps).rsqrt()
    normed = (grouped - mean) * rstd
    scaled = grad if weight is None else grad * weight.view(1, -1, 1, 1)
    scaled = scaled.unflatten(1, (num_groups, -1)).flatten(2)
    inner = scaled - scaled.mean(2, True) - normed * (scaled * normed).mean(2, True)
    products = grad * normed.view(value.shape)
    return (inner * rstd).view(value.shape), products.sum((0, 2, 3)), grad.sum((0, 2, 3))
