"""What a model that was just constructed must have, because it is compiled in."""

import functools as _functools

import torch
from torch import nn as _nn


def _checked_at_construction(model_class, require) -> None:
    """Has every construction of `model_class` end with require(model)."""
    construct = model_class.__init__

    @_functools.wraps(construct)
    def __init__(self, *args, **kwargs):
        construct(self, *args, **kwargs)
        if type(self) is model_class:
            require(self)

    model_class.__init__ = __init__


def _require_modules(model, names: tuple) -> None:
    """Layers that forward calls must be there."""
    for name in names:
        module = model
        for part in name.split("."):
            module = getattr(module, part, None)
        if not isinstance(module, _nn.Module):
            raise ValueError(
                f"this solution was generated for a model with the layer {name}, the model has "
                f"{module!r} there: generate it again from a reference that has none"
            )


def _require_sizes(model, sizes: dict) -> None:
    """Shapes of parameters and buffers and numbers of layers, where forward computes with sizes."""
    for name, size in sizes.items():
        value = model
        for part in name.split("."):
            value = getattr(value, part, None)
        value = tuple(value.shape) if isinstance(value, torch.Tensor) else value
        if value != size:
            raise ValueError(
                f"this solution was generated for {name} of {size!r}, the model has {value!r}, and "
                "forward computes with sizes: generate it again from a reference that sets it"
            )
