"""Tails: operators that no kernel of the convolution takes along, each with the element-wise steps
behind it, and their gradients, by libraries of kernels that are built when first called: where
those are faster than PyTorch's.
"""

import math as _math

import torch
from torch import nn as _nn

from generator.runtime.allocation import _ALLOCATION
from generator.runtime.dispatch import _as_operator, _transformed, _wants_gradient
from generator.runtime.generated import _TAILS
from generator.runtime.large_batch_norm import _counted_batch, _kernels_serve
from generator.runtime.large_group_norm import _group_norm_pays, _num_groups
from generator.runtime.large_layers import _is_as_read, _is_hopper, _is_plain_layer
from generator.runtime.tail_gradients import _has_tail_gradient, _Tail
from generator.runtime.tail_libraries import _tail_library

_MANY_OF_TAIL, _MOST_OF_TAIL = 1 << 22, 1 << 31
_MOST_SOFTMAX_CHANNELS, _LEAST_SOFTMAX_PLANE = 256, 32
_MOST_OF_ROW, _MOST_OF_LOOSE_ROW, _VECTOR_BYTES = 1024, 256, 16  # whole vectors, or not


def _tail(number: int, x, layer, vectors, step_layers) -> tuple:
    """(True, the result of tail `number` of x), or (False, x) where PyTorch's operators are to run.

    layer: the module that the tail begins with, or None for a function; vectors: the operands of
    its steps; step_layers: the modules among those, each with what it was when it was read.
    """
    kind = _TAILS[number]
    if _as_operator() or _transformed() or not (kind in _NORM_TAILS or _tail_pays(x, vectors)):
        return False, x
    name, numbers, tensors = _TAIL_CALLS[kind](layer, x)
    if name is None or not all(_is_as_read(step, was) for step, was in step_layers):
        return False, x
    image = name == "pool" and x.dim() == 4  # to the kernels a volume of one slice
    value = x.unsqueeze(2) if image else x

    def run() -> tuple:
        """(the result, what its gradients read besides)"""
        operator = getattr(_tail_library(), name).default
        flat = [None if tensor is None else tensor.reshape(-1) for tensor in tensors]
        moved = _counted_batch(layer) if "batch_norm" in name else ()
        with _ALLOCATION:
            found = operator(number, value, *flat, *moved, *numbers, *vectors)
        return (found[0], found[1:]) if kind in _NORM_TAILS else (found, ())

    if not _wants_gradient(x, *tensors, *vectors):
        y, _ = run()
    elif _has_tail_gradient(name, vectors):
        y = _Tail.apply(run, (number, name, numbers), len(tensors), value, *tensors, *vectors)
    else:
        return False, x
    return True, y.squeeze(2) if image else y


_NO_TAIL = None, (), ()


def _row_norm_call(layer, x) -> tuple:
    """(the operator's name or None, the numbers that it is given, the layer's tensors)"""
    if not _is_plain_layer(layer, _nn.LayerNorm):
        return _NO_TAIL
    shape, tensors = tuple(layer.normalized_shape), (layer.weight, layer.bias)
    row = _math.prod(shape)
    in_vectors = (row * x.element_size() | x.data_ptr()) % _VECTOR_BYTES == 0
    own_rows = len(shape) < x.dim() - 1 and tuple(x.shape[-len(shape) :]) == shape
    if not own_rows or row > (_MOST_OF_ROW if in_vectors else _MOST_OF_LOOSE_ROW):
        return _NO_TAIL
    if any(t is not None and not _fits_tail(t, x) for t in tensors):
        return _NO_TAIL
    return "layer_norm", (layer.eps, row), tensors


def _group_norm_call(layer, x) -> tuple:
    """Likewise; where it pays, as without steps."""
    num_groups = _num_groups(layer, x)
    if not (num_groups and _group_norm_pays(layer, x)):
        return _NO_TAIL
    return "group_norm", (num_groups, layer.eps), (layer.weight, layer.bias)


def _batch_norm_call(layer, x) -> tuple:
    """Likewise."""
    if not _kernels_serve(layer, x):
        return _NO_TAIL
    return "batch_norm", (layer.eps,), (layer.weight, layer.bias)


def _centred_batch_norm_call(layer, x) -> tuple:
    """Likewise; it pays where the norm alone does."""
    name, *rest = _batch_norm_call(layer, x)
    return (name and f"centred_{name}", *rest)


def _softmax_call(layer, x) -> tuple:
    """Likewise."""
    if layer is not None and not (
        _is_plain_layer(layer, _nn.Softmax) and layer.dim in (1, 1 - x.dim())
    ):
        return _NO_TAIL
    plane = x.numel() // (x.shape[0] * x.shape[1])
    if x.shape[1] > _MOST_SOFTMAX_CHANNELS or plane < _LEAST_SOFTMAX_PLANE:
        return _NO_TAIL
    return "softmax", (), ()


def _plane_softmax_call(layer, x) -> tuple:
    """Likewise."""
    if layer is not None and not (_is_plain_layer(layer, _nn.Softmax) and layer.dim in (2, -1)):
        return _NO_TAIL
    return ("plane_softmax", (), ()) if x.dim() == 3 else _NO_TAIL


def _pool_call(layer, x) -> tuple:
    """Likewise."""
    average = _is_plain_layer(layer, _nn.AvgPool3d if x.dim() == 5 else _nn.AvgPool2d)
    if not average and not _is_plain_layer(layer, _nn.MaxPool3d if x.dim() == 5 else _nn.MaxPool2d):
        return _NO_TAIL
    window, stride, padding = (
        (value,) * (x.dim() - 2) if isinstance(value, int) else tuple(value)
        for value in (layer.kernel_size, layer.stride, layer.padding)
    )
    others = layer.divisor_override is not None if average else layer.return_indices
    if others or layer.ceil_mode or any(padding) or stride != window:
        return _NO_TAIL
    if not average and layer.dilation not in (1, (1,) * len(window)):
        return _NO_TAIL
    if any(size < least for size, least in zip(x.shape[2:], window, strict=True)):
        return _NO_TAIL
    return "pool", (1,) * (3 - len(window)) + window, ()


_TAIL_CALLS = {
    "kLayerNorm": _row_norm_call,
    "kSoftmax": _softmax_call,
    "kPlaneSoftmax": _plane_softmax_call,
    "kAveragePool": _pool_call,
    "kMaxPool": _pool_call,
    "kGroupNorm": _group_norm_call,
    "kBatchNorm": _batch_norm_call,
    "kCentredBatchNorm": _centred_batch_norm_call,
}
_NORM_TAILS = "kGroupNorm", "kBatchNorm", "kCentredBatchNorm"  # whose steps have no operands


def _fits_tail(tensor, x) -> bool:
    return tensor.dtype == x.dtype and tensor.device == x.device


def _tail_pays(x, vectors) -> bool:
    """Measured on Hopper, for contiguous tensors."""
    return (
        x.is_cuda
        and x.dim() > 2
        and _MANY_OF_TAIL <= x.numel() < _MOST_OF_TAIL
        and x.dtype in (torch.float32, torch.float16, torch.bfloat16)
        and (x.dtype == torch.float32 or not torch.is_autocast_enabled(x.device.type))
        and x.is_contiguous()
        and all(_fits_tail(vector, x) for vector in vectors)
        and _is_hopper(x.device.index)
    )
