"""What a layer and its tensors must be, for kernels of ours to run in its place."""

import functools as _functools

import torch

from generator.runtime.inner_modules import _HOOKS


def _is_plain(module, kind) -> bool:
    """Is it a `kind` itself, whose call runs that class's forward and nothing else?"""
    own = module.__dict__
    changed = "forward" in own or any(own[hook] for hook in _HOOKS)
    return type(module) is kind and not changed


def _fits_channels(vector, x) -> bool:
    """Is it what the kernels read or write of each channel of x, or None?"""
    if vector is None:
        return True
    return (
        vector.dtype == x.dtype
        and vector.shape == (x.shape[1],)
        and vector.device == x.device
        and vector.is_contiguous()
    )


@_functools.cache
def _is_hopper(device: int) -> bool:
    return torch.cuda.get_device_capability(device) == (9, 0)
