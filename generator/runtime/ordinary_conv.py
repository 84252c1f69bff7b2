"""nn.Conv2d of stride one by the kernels of the transposed convolution, where those are faster than
PyTorch's and no gradient is wanted.
"""

import torch
from torch import nn as _nn

from generator.runtime.dispatch import _as_operator, _transformed, _wants_gradient
from generator.runtime.large_layers import _is_hopper, _is_plain_layer

# Of a batch. Measured on an H200: in 16 bits, and with few products, PyTorch's is as fast on less.
_MANY_PIXELS, _FEW_PIXELS, _MANY_PRODUCTS = 1 << 16, 1 << 12, 1 << 30


def _ordinary_conv(operator, module, x):
    """module(x), by `operator` where it pays: a convolution of stride one is the transposed one
    with its kernel turned round and dilation * (kernel_size - 1) - padding for its padding.
    """
    if _as_operator() or _transformed():  # compilers choose a layout for PyTorch's
        return module(x)
    if not (_is_plain_layer(module, _nn.Conv2d) and _pays(module, x)):
        return module(x)
    if _wants_gradient(x, module.weight, module.bias):  # which often leaves fp16's range
        return module(x)
    axes = zip(module.dilation, module.kernel_size, module.padding, strict=True)
    padding = tuple(dilation * (size - 1) - cut for dilation, size, cut in axes)
    if min(padding) < 0:
        return module(x)
    weight = _turned_round(module.weight)
    return operator(x, weight, module.bias, (1, 1), padding, (0, 0), module.dilation, 1)


def _turned_round(weight):
    """From [out_channels, channels, h, w] to [channels, out_channels, h, w], taps reversed."""
    return weight.flip(2, 3).transpose(0, 1)


def _pays(module, x) -> bool:
    """Measured on Hopper, for contiguous images."""
    weight = module.weight
    return (
        x.is_cuda
        and x.dim() == 4
        and x.numel() > 0
        and x.dtype == weight.dtype
        and x.dtype in (torch.float32, torch.float16, torch.bfloat16)
        and x.is_contiguous()
        and weight.is_contiguous()
        and module.groups == 1
        and _is_large(x, weight)
        and module.stride == (1, 1)
        and module.kernel_size != (1, 1)
        and module.padding_mode == "zeros"
        and not isinstance(module.padding, str)
        and _is_hopper(x.device.index)
    )


def _is_large(x, weight) -> bool:
    pixels = x.numel() // x.shape[1]
    many = pixels * weight.numel() >= _MANY_PRODUCTS
    return pixels >= _MANY_PIXELS or (x.dtype == torch.float32 and pixels >= _FEW_PIXELS and many)
