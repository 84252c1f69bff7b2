"""Tails: operators that no kernel of the convolution takes along, each with the element-wise steps
behind it, by a library of kernels that is built when first called: where those are faster than
PyTorch's and no gradient is wanted.
"""

import math as _math

import torch
from torch import nn as _nn

from generator.runtime.allocation import _ALLOCATION
from generator.runtime.dispatch import _as_operator, _transformed, _wants_gradient
from generator.runtime.generated import _TAILS, TAIL_CUDA_SOURCE, TAIL_OPERATOR_SOURCE
from generator.runtime.gradient_kernels import _GRADIENT_CUDA, _load_operators
from generator.runtime.large_layers import _is_hopper, _is_plain
from generator.runtime.library_sources import _whole_library

_MANY_OF_TAIL, _MOST_OF_TAIL = 1 << 22, 1 << 31
_MOST_SOFTMAX_CHANNELS, _LEAST_SOFTMAX_PLANE = 256, 32
_MOST_OF_ROW, _MOST_OF_LOOSE_ROW, _VECTOR_BYTES = 1024, 256, 16  # whole vectors, or not
_TAIL_LIBRARY = _whole_library(
    "tconv_tail",
    TAIL_CUDA_SOURCE,
    TAIL_OPERATOR_SOURCE,
    GRADIENT_CUDA_SOURCE=_GRADIENT_CUDA,
)


def _tail(number: int, x, layer, vectors, step_layers) -> tuple:
    """(True, the result of tail `number` of x), or (False, x) where PyTorch's operators are to run.

    layer: the module that the tail begins with, or None for a function; vectors: the operands of
    its steps; step_layers: the modules among those, each with what it was when it was read.
    """
    if _as_operator() or _transformed() or not _tail_pays(x, vectors):
        return False, x
    name, operands, tensors = _TAIL_CALLS[_TAILS[number]](layer, x)
    if name is None or _wants_gradient(x, *tensors, *vectors):
        return False, x
    if not all(_is_as_read(step, was) for step, was in step_layers):
        return False, x
    with _ALLOCATION:
        return True, getattr(_tail_library(), name).default(number, x, *operands, *vectors)


def _is_as_read(layer, was: str) -> bool:
    """Is it one of torch.nn still, without hooks, and with the numbers that are compiled in?"""
    of_torch = type(layer).forward.__module__.startswith(f"{_nn.__name__}.")
    return of_torch and _is_plain(layer, type(layer)) and repr(layer) == was


_NO_TAIL = None, (), ()


def _row_norm_call(layer, x) -> tuple:
    """(the operator's name or None, its operands behind x, tensors that may want a gradient)"""
    if not _is_plain(layer, _nn.LayerNorm):
        return _NO_TAIL
    shape, tensors = tuple(layer.normalized_shape), (layer.weight, layer.bias)
    row = _math.prod(shape)
    in_vectors = (row * x.element_size() | x.data_ptr()) % _VECTOR_BYTES == 0
    own_rows = len(shape) < x.dim() - 1 and tuple(x.shape[-len(shape) :]) == shape
    if not own_rows or row > (_MOST_OF_ROW if in_vectors else _MOST_OF_LOOSE_ROW):
        return _NO_TAIL
    if any(t is not None and not _fits_tail(t, x) for t in tensors):
        return _NO_TAIL
    flat = [None if t is None else t.reshape(-1) for t in tensors]
    return "layer_norm", (*flat, layer.eps, row), tensors


def _softmax_call(layer, x) -> tuple:
    """Likewise."""
    if layer is not None and not (_is_plain(layer, _nn.Softmax) and layer.dim in (1, 1 - x.dim())):
        return _NO_TAIL
    plane = x.numel() // (x.shape[0] * x.shape[1])
    if x.shape[1] > _MOST_SOFTMAX_CHANNELS or plane < _LEAST_SOFTMAX_PLANE:
        return _NO_TAIL
    return "softmax", (), ()


def _plane_softmax_call(layer, x) -> tuple:
    """Likewise."""
    if layer is not None and not (_is_plain(layer, _nn.Softmax) and layer.dim in (2, -1)):
        return _NO_TAIL
    return ("plane_softmax", (), ()) if x.dim() == 3 else _NO_TAIL


def _pool_call(layer, x) -> tuple:
    """Likewise."""
    if x.dim() != 5:
        return _NO_TAIL
    average = _is_plain(layer, _nn.AvgPool3d)
    if not average and not _is_plain(layer, _nn.MaxPool3d):
        return _NO_TAIL
    window, stride, padding = (
        (value,) * 3 if isinstance(value, int) else tuple(value)
        for value in (layer.kernel_size, layer.stride, layer.padding)
    )
    others = layer.divisor_override is not None if average else layer.return_indices
    if others or layer.ceil_mode or padding != (0, 0, 0) or stride != window:
        return _NO_TAIL
    if not average and layer.dilation not in (1, (1, 1, 1)):
        return _NO_TAIL
    if any(size < least for size, least in zip(x.shape[2:], window, strict=True)):
        return _NO_TAIL
    return "pool", window, ()


_TAIL_CALLS = {
    "kLayerNorm": _row_norm_call,
    "kSoftmax": _softmax_call,
    "kPlaneSoftmax": _plane_softmax_call,
    "kAveragePool": _pool_call,
    "kMaxPool": _pool_call,
}


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


def _fake_tail(number, value, *args):
    return torch.empty_like(value, memory_format=torch.contiguous_format)


def _fake_pool(number, value, window_d, window_h, window_w, *args):
    windows = zip(value.shape[2:], (window_d, window_h, window_w), strict=True)
    return value.new_empty((*value.shape[:2], *(size // window for size, window in windows)))


def _tail_library():
    """The namespace with the operators of kernels_src/binding/operator_tail.cpp."""
    fakes = dict.fromkeys(("layer_norm", "softmax", "plane_softmax"), _fake_tail)
    fakes["pool"] = _fake_pool
    namespace, _ = _load_operators(*_TAIL_LIBRARY, fakes)
    return namespace
