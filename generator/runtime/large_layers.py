"""What a layer and its tensors must be, for kernels of ours to run in its place."""

import functools as _functools

import torch
from torch import nn as _nn

from generator.runtime.inner_modules import _HOOKS


def _is_plain_layer(module, kind) -> bool:
    """Is it a `kind` itself, whose call runs that class's forward and nothing else?"""
    own = module.__dict__
    changed = "forward" in own or any(own[hook] for hook in _HOOKS)
    return type(module) is kind and not changed


def _is_as_read(layer, was: str) -> bool:
    """Is it one of torch.nn still, without hooks, and with the numbers that are compiled in?"""
    of_torch = type(layer).forward.__module__.startswith(f"{_nn.__name__}.")
    return of_torch and _is_plain_layer(layer, type(layer)) and repr(layer) == was


def _fits_channels(vector, x, channels: int | None = None) -> bool:
    """Is it what the kernels read or write of each channel of x, or of so many, or None?"""
    if vector is None:
        return True
    return (
        vector.dtype == x.dtype
        and vector.shape == (x.shape[1] if channels is None else channels,)
        and vector.device == x.device
        and vector.is_contiguous()
    )


@_functools.cache
def _is_hopper(device: int) -> bool:
    return torch.cuda.get_device_capability(device) == (9, 0)
