"""The libraries of tails and of their gradients, each built when first called."""

import torch

from generator.runtime.generated import (
    _TAILS,
    TAIL_CUDA_SOURCE,
    TAIL_GRADIENT_CUDA_SOURCE,
    TAIL_GRADIENT_OPERATOR_SOURCE,
    TAIL_OPERATOR_SOURCE,
)
from generator.runtime.gradient_kernels import _GRADIENT_CUDA, _load_operators
from generator.runtime.library_sources import _whole_library

_TAIL_LIBRARY = _whole_library(
    "tconv_tail",
    TAIL_CUDA_SOURCE,
    TAIL_OPERATOR_SOURCE,
    GRADIENT_CUDA_SOURCE=_GRADIENT_CUDA,
)
_TAIL_GRADIENT_LIBRARY = _whole_library(
    "tconv_tail_gradients",
    TAIL_GRADIENT_CUDA_SOURCE,
    TAIL_GRADIENT_OPERATOR_SOURCE,
    GRADIENT_CUDA_SOURCE=_GRADIENT_CUDA,
    TAIL_CUDA_SOURCE=_TAIL_LIBRARY[2],
)


def _fake_tail(number, value, *args):
    return torch.empty_like(value, memory_format=torch.contiguous_format)


def _fake_pool(number, value, window_d, window_h, window_w, *args):
    windows = zip(value.shape[2:], (window_d, window_h, window_w), strict=True)
    return value.new_empty((*value.shape[:2], *(size // window for size, window in windows)))


def _fake_norm(of_samples: bool):
    """With a map for each channel of a sample, or for each channel."""

    def fake(number, value, *args):
        maps = value.shape[0] * value.shape[1] if of_samples else value.shape[1]
        return _fake_tail(number, value), value.new_empty((maps, 4), dtype=torch.float32)

    return fake


def _fake_gradient(wanted_at: int, of_row: int | None = None):
    """Of an operator with `wanted` at that place behind the value, and a row's length at of_row."""

    def fake(number, grad, value, *args):
        columns = value.shape[1] if of_row is None else args[of_row]
        sums = value.new_empty((args[wanted_at].bit_length(), columns))
        return _fake_tail(number, value), sums

    return fake


def _tail_library():
    """The namespace with the operators of kernels_src/binding/operator_tail.cpp."""
    fakes = dict.fromkeys(("layer_norm", "softmax", "plane_softmax"), _fake_tail)
    fakes |= {"pool": _fake_pool, "group_norm": _fake_norm(True), "batch_norm": _fake_norm(False)}
    if "kCentredBatchNorm" in _TAILS:
        fakes["centred_batch_norm"] = _fake_norm(True)
    namespace, _ = _load_operators(*_TAIL_LIBRARY, fakes)
    return namespace


def _tail_gradient_library():
    """The namespace with the operators of kernels_src/binding/operator_tail_gradient.cpp."""
    fakes = {
        "layer_norm_backward": _fake_gradient(4, 3),
        "softmax_backward": _fake_gradient(0),
        "plane_softmax_backward": _fake_gradient(0),
        "pool_backward": _fake_gradient(3),
        "group_norm_backward": _fake_gradient(5),
        "batch_norm_backward": _fake_gradient(4),
    }
    if "kCentredBatchNorm" in _TAILS:
        fakes["centred_batch_norm_backward"] = _fake_gradient(4)
    namespace, _ = _load_operators(*_TAIL_GRADIENT_LIBRARY, fakes)
    return namespace
