"""What an attribute of a model is made of, as something that can be compared and written down."""

import enum as _enum

import torch
from torch import nn as _nn


def _is_plain(value) -> bool:
    """Whether a value is its own description: numbers, strings, and containers of them."""
    kind = type(value)
    if kind in (tuple, list, set, frozenset):
        return all(map(_is_plain, value))
    if kind is dict:
        return all(_is_plain(item) for pair in value.items() for item in pair)
    return value is None or kind in (bool, int, float, str, bytes)


def _described(value, depth: int = 0):
    """`value` where that is plain, else a text that two values share only if forward cannot tell
    them apart: of objects their classes and attributes, of functions their names, of tensors dtypes
    and shapes.
    """
    kind = type(value)
    if _is_plain(value):
        return value
    if isinstance(value, torch.Tensor):
        return f"Tensor {value.dtype} {list(value.shape)}"
    if isinstance(value, _nn.Module):
        return f"Module {kind.__qualname__}"
    if isinstance(value, dict):
        return f"dict {[(key, _described(item, depth + 1)) for key, item in value.items()]}"
    if isinstance(value, tuple | list | set | frozenset):
        items = sorted(value, key=str) if isinstance(value, set | frozenset) else value
        return f"{kind.__name__} {[_described(item, depth + 1) for item in items]}"
    if isinstance(value, _enum.Enum):
        return f"{kind.__qualname__}.{value.name}"
    name = getattr(value, "__qualname__", None)
    if name is not None:
        home = value.__module__ or ""
        return f"{home} {name}" if home.startswith("torch") else name
    attributes = getattr(value, "__dict__", None)
    if attributes and depth < 6:
        return f"{kind.__qualname__} {_described(dict(attributes), depth + 1)}"
    text = repr(value)
    return kind.__qualname__ if " at 0x" in text else f"{kind.__qualname__} {text}"
