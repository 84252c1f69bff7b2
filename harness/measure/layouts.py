"""PyTorch's layout with channels last, in two and three dimensions."""

import torch
from torch import nn

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}  # by a tensor's dimensions


def has_channels_last(value) -> bool:
    """Whether it is a tensor for which PyTorch has that layout."""
    return torch.is_tensor(value) and value.dim() in FORMATS


def in_channels_last(value):
    """A tensor of four or five dimensions in that layout, anything else as it is."""
    if has_channels_last(value):
        return value.contiguous(memory_format=FORMATS[value.dim()])
    return value


def module_in_channels_last(module: nn.Module) -> nn.Module:
    """The module itself, its parameters and buffers in that layout. Module.to, which does the same,
    takes one memory format and raises for tensors of the other number of dimensions.
    """
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.data = in_channels_last(tensor.data)
    return module
