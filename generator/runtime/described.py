"""What an attribute of a model is made of, as something that can be compared and written down."""

import enum as _enum
import hashlib as _hashlib

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
    code = getattr(value, "__code__", None)
    if code is not None:  # another lambda has the same name
        kept = [cell.cell_contents for cell in getattr(value, "__closure__", None) or ()]
        constants = [item for item in code.co_consts if _is_plain(item)]
        text = repr(
            (code.co_code, constants, code.co_names, [_described(k, depth + 1) for k in kept])
        )
        return f"{value.__name__} {_hashlib.sha256(text.encode()).hexdigest()[:12]}"
    if hasattr(value, "__qualname__"):
        return value.__qualname__
    attributes = getattr(value, "__dict__", None)
    if attributes and depth < 6:
        return f"{kind.__qualname__} {_described(dict(attributes), depth + 1)}"
    text = repr(value)
    return kind.__qualname__ if " at 0x" in text else f"{kind.__qualname__} {text}"
