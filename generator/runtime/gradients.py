"""Backward formulas: ATen's own backward operators, on values recomputed from the inputs."""

import torch

from generator.runtime.arguments import _Conv


def _batched(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dim() == 4 else tensor.unsqueeze(0)


def _recompute_conv(x, weight, bias, conv: _Conv) -> torch.Tensor:
    return torch.ops.aten.convolution(
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
    """Gradients of x, weight and bias (None where not in `needs`), for grad [batch, out_channels, out_h, out_w]."""
    if not any(needs):
        return None, None, None
    grad_x, grad_weight, grad_bias = torch.ops.aten.convolution_backward(
        grad,
        _batched(x),
        weight,
        [weight.shape[1] * conv.groups],
        conv.stride,
        conv.padding,
        conv.dilation,
        True,
        conv.output_padding,
        conv.groups,
        list(needs),
    )
    return (grad_x.view(x.shape) if needs[0] else None), grad_weight, grad_bias


def _chain_needs_values(chain) -> bool:
    return any(step.needs_values for step in chain)


def _chain_forward(chain, value, vectors) -> list:
    """[value, value after step 0, value after step 1, ...]"""
    values = [value]
    for step in chain:
        values.append(step.forward(values[-1], vectors))
    return values


def _chain_backward(chain, grad, values, vectors) -> tuple:
    """(gradient of the convolution's output, gradients of the vectors); `values` may be None where no step looks."""
    vector_grads = [None] * len(vectors)
    for index in reversed(range(len(chain))):
        before, after = (None, None) if values is None else (values[index], values[index + 1])
        grad = chain[index].backward(grad, before, after, vectors, vector_grads)
    return grad, vector_grads


def _group_norm_moments(value, num_groups: int, eps: float) -> tuple:
    """(mean, 1 / sqrt(variance + eps)) of each sample's groups."""
    batch, channels, height, width = value.shape
    return torch.ops.aten.native_group_norm(
        value, None, None, batch, channels, height * width, num_groups, eps
    )[1:]


def _group_norm_gradients(grad, value, moments, weight, num_groups: int, needs) -> tuple:
    """Gradients of GroupNorm's input, weight and bias; the last two only where `needs` says so."""
    batch, channels, height, width = value.shape
    return torch.ops.aten.native_group_norm_backward(
        grad.contiguous(),
        value,
        *moments,
        weight,
        batch,
        channels,
        height * width,
        num_groups,
        [True, *needs],
    )
