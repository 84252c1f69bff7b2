"""Parameters of the modules as pairs, and shapes of outputs; checks are the operator's
(kernels_src/binding/).
"""

from typing import NamedTuple as _NamedTuple

import torch
from torch._prims_common import suggest_memory_format as _suggest_memory_format


class _Conv(_NamedTuple):
    """Parameters of nn.ConvTranspose2d; each pair is (height, width)."""

    stride: tuple
    padding: tuple
    output_padding: tuple
    dilation: tuple
    groups: int


def _as_pair(name: str, values) -> tuple:
    """An int for both axes, or a pair. Raises RuntimeError, as PyTorch does, for other lengths."""
    if isinstance(values, int):
        return (values, values)
    if len(values) != 2:
        raise RuntimeError(
            f"conv_transpose2d: {name} must be an int or a pair (height, width), got {len(values)} "
            f"values: {tuple(values)}"
        )
    return tuple(values)


def _make_conv(stride, padding, output_padding, dilation, groups) -> tuple:
    """The fields of a _Conv, in its order; a plain tuple, because it is made at every call."""
    return (
        stride if type(stride) is tuple and len(stride) == 2 else _as_pair("stride", stride),
        padding if type(padding) is tuple and len(padding) == 2 else _as_pair("padding", padding),
        output_padding
        if type(output_padding) is tuple and len(output_padding) == 2
        else _as_pair("output_padding", output_padding),
        dilation
        if type(dilation) is tuple and len(dilation) == 2
        else _as_pair("dilation", dilation),
        groups,
    )


def _make_pool(kernel, stride, padding, dilation, ceil_mode) -> tuple:
    """Pairs and the flag, in this order; nn.MaxPool2d keeps an int for both axes as it is."""
    return (
        (kernel, kernel) if type(kernel) is int else _as_pair("the pool's kernel_size", kernel),
        (stride, stride) if type(stride) is int else _as_pair("the pool's stride", stride),
        (padding, padding) if type(padding) is int else _as_pair("the pool's padding", padding),
        (dilation, dilation)
        if type(dilation) is int
        else _as_pair("the pool's dilation", dilation),
        ceil_mode,
    )


def _output_size(size, kernel, stride, padding, output_padding, dilation):
    """One axis of the output. Source: PyTorch ConvTranspose2d documentation."""
    return (size - 1) * stride - 2 * padding + dilation * (kernel - 1) + output_padding + 1


def _same_kind(name: str, tensor, x) -> None:
    if tensor is not None and (tensor.dtype, tensor.device) != (x.dtype, x.device):
        raise RuntimeError(
            f"conv_transpose2d: {name} must have the input's dtype and device, got {tensor.dtype} "
            f"on {tensor.device} and an input in {x.dtype} on {x.device}"
        )


def _conv_output_shape(x, weight, bias, conv: tuple) -> tuple:
    """Output shape for an input [batch, in_channels, h, w] or [in_channels, h, w] without data.
    Sizes may be symbolic, so only what does not depend on them much is checked here.
    """
    _same_kind("weight", weight, x)
    _same_kind("bias", bias, x)
    if x.dim() not in (3, 4) or x.shape[-3] != weight.shape[0]:
        raise RuntimeError(
            f"conv_transpose2d: input must have {weight.shape[0]} channels, the first dimension of "
            f"weight, got an input of shape {tuple(x.shape)}"
        )
    sizes = [
        _output_size(x.shape[axis - 2], weight.shape[axis + 2], *(pair[axis] for pair in conv[:4]))
        for axis in range(2)
    ]
    return (*x.shape[:-3], weight.shape[1] * conv[4], *sizes)


def _new_output(shape: tuple, x, weight):
    """An output without data in PyTorch's layout: channels_last where input or weight are."""
    out = x.new_empty(shape)
    formats = [_suggest_memory_format(tensor) for tensor in (x, weight)]
    if x.dim() == 4 and torch.channels_last in formats:
        return out.contiguous(memory_format=torch.channels_last)
    return out


def _pooled_size(size, kernel, stride, padding, dilation, ceil_mode):
    """One axis after nn.MaxPool2d: in ceil_mode a last window that starts beyond the image is
    dropped.
    """
    reach = size + 2 * padding - dilation * (kernel - 1) - 1
    if not ceil_mode:
        return reach // stride + 1
    pooled = -(-reach // stride) + 1
    return pooled - 1 if (pooled - 1) * stride >= size + padding else pooled


def _pooled_shape(shape, pool: tuple) -> tuple:
    sizes = [_pooled_size(*axis, pool[4]) for axis in zip(shape[2:], *pool[:4], strict=True)]
    return (*shape[:2], *sizes)
