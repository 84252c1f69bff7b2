"""nn.BatchNorm2d and nn.BatchNorm3d in fp32 by a batch's statistics, and softmax over rows behind
the first, by a library of kernels that is built when first called: where those are faster than
PyTorch's and no gradient is wanted.
"""

import torch
from torch import nn as _nn

from generator.runtime.allocation import _ALLOCATION
from generator.runtime.dispatch import _as_operator, _transformed, _wants_gradient
from generator.runtime.generated import BATCH_NORM_CUDA_SOURCE, BATCH_NORM_OPERATOR_SOURCE
from generator.runtime.gradient_kernels import _GRADIENT_CUDA, _load_operators
from generator.runtime.large_layers import _fits_channels, _is_hopper, _is_plain
from generator.runtime.library_sources import _whole_library

# Measured on an H200: on fewer values of a channel, or of a tensor, PyTorch's is as fast.
_MANY_OF_CHANNEL, _MANY_VALUES, _MOST_VALUES = 1 << 16, 1 << 21, 1 << 31
_SOFTMAX_WIDTHS = (64, 128, 256, 512)
_BATCH_NORM = _whole_library(
    "tconv_batch_norm",
    BATCH_NORM_CUDA_SOURCE,
    BATCH_NORM_OPERATOR_SOURCE,
    GRADIENT_CUDA_SOURCE=_GRADIENT_CUDA,
)


def _large_batch_norm(module, x, softmax=None):
    """module(x), or softmax(module(x)), by the kernels where it pays."""
    if not _kernels_serve(module, x):
        y = module(x)
        return y if softmax is None else softmax(y)
    if softmax is not None and not _is_over_rows(softmax, x):
        return softmax(_normalised(module, x, False))
    return _normalised(module, x, softmax is not None)


def _kernels_serve(module, x) -> bool:
    """Training mode of large images, eagerly and without a gradient?"""
    if _as_operator() or _transformed():
        return False
    kind = _nn.BatchNorm2d if x.dim() == 4 else _nn.BatchNorm3d
    if not (_is_plain(module, kind) and module.training and _norm_pays(module, x)):
        return False
    return not _wants_gradient(x, module.weight, module.bias)


def _normalised(module, x, softmax):
    """By the kernels, as nn.BatchNorm2d counts batches and keeps statistics. To them a volume is an
    image, its slices below each other.
    """
    keeps, counted, momentum = module.track_running_stats, None, module.momentum
    if keeps and module.num_batches_tracked is not None:
        module.num_batches_tracked.add_(1)
        counted = module.num_batches_tracked if momentum is None else None
    running = (module.running_mean, module.running_var) if keeps else (None, None)
    normalise = _batch_norm_kernels()
    image = x if x.dim() == 4 else x.flatten(2, 3)
    with _ALLOCATION:
        found = normalise(
            *(image, module.weight, module.bias, *running),
            *(counted, momentum or 0.0, module.eps, softmax),
        )
    return found.view(x.shape)


def _is_over_rows(softmax, x) -> bool:
    """Is it what the kernels know?"""
    over_rows = _is_plain(softmax, _nn.Softmax) and softmax.dim in (-1, 3)
    return x.dim() == 4 and over_rows and x.shape[3] in _SOFTMAX_WIDTHS and x.data_ptr() % 16 == 0


def _fake_normalise(value, *args):
    return torch.empty_like(value, memory_format=torch.contiguous_format)


def _batch_norm_kernels():
    """The operator of kernels_src/binding/operator_batch_norm.cpp."""
    namespace, _ = _load_operators(
        *_BATCH_NORM,
        {"normalise": _fake_normalise},
    )
    return namespace.normalise.default


def _norm_pays(module, x) -> bool:
    """Measured on Hopper, for contiguous images."""
    return (
        x.is_cuda
        and x.dim() in (4, 5)
        and _MANY_VALUES <= x.numel() <= _MOST_VALUES
        and x.numel() >= _MANY_OF_CHANNEL * x.shape[1]
        and x.shape[1] == module.num_features
        and x.dtype == torch.float32
        and x.is_contiguous()
        and all(_fits_channels(v, x) for v in (module.weight, module.bias))
        and all(_fits_channels(v, x) for v in (module.running_mean, module.running_var))
        and (module.running_mean is None) == (module.running_var is None)
        and _is_hopper(x.device.index)
    )
