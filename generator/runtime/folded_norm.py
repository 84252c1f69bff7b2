"""BatchNorm by running statistics, and the element-wise steps behind it, as steps of the
convolution's kernel, where no gradient is wanted. Each such chain is a library of its own, built
when first called.
"""

import torch
from torch import nn as _nn
from torch.utils.flop_counter import register_flop_formula as _register_flop_formula

from generator.runtime.arguments import _make_conv
from generator.runtime.autocast import _autocasting
from generator.runtime.build import _NAMESPACE, _load_library
from generator.runtime.dimensions import (
    _axes,
    _by_slices,
    _in_one_dimension,
    _is_channels_last_3d,
)
from generator.runtime.dispatch import _as_operator, _transformed, _wants_gradient
from generator.runtime.folded_rows import _folding
from generator.runtime.generated import (
    _FOLDED_NORMS,
    CPU_SOURCE,
    CUDA_SOURCE,
    OPERATOR_SOURCE,
)
from generator.runtime.large_layers import _fits_channels, _is_as_read, _is_plain_layer
from generator.runtime.operator_forms import _fake, _make_fake_run, _make_run
from generator.runtime.registration import _count_flops
from generator.runtime.volume_operator import _run_volumes, _volume_operator

_FOLDED_DEVICES = ("cuda", "cpu")
_BATCH_NORMS = {3: _nn.BatchNorm1d, 4: _nn.BatchNorm2d, 5: _nn.BatchNorm3d}


def _folded_norm(number: int, convolve, norm, step_layers, x, weight, bias, *rest) -> tuple:
    """(True, what fold `number` makes of x), or (False, x) where convolution and norm are to run
    one after the other.

    convolve: _folded_image or one of its siblings; norm: the layer; step_layers: those behind it,
    each with what it was when it was read; rest: the convolution's numbers, then its chain's
    per-channel operands.
    """
    if _as_operator() or _transformed() or _autocasting():
        return False, x
    if x.device.type not in _FOLDED_DEVICES or x.dim() != weight.dim():
        return False, x
    _, *given = _FOLDED_NORMS[number]
    channels = weight.shape[1] * rest[4]
    if not _is_plain_layer(norm, _BATCH_NORMS.get(x.dim())) or norm.training:
        return False, x
    if [norm.eps, norm.weight is not None, norm.bias is not None] != given:
        return False, x
    statistics = norm.running_mean, norm.running_var
    if any(v is None for v in statistics):
        return False, x
    if not all(_is_as_read(step, was) for step, was in step_layers):
        return False, x
    own = [*statistics, *(v for v in (norm.weight, norm.bias) if v is not None)]
    if not all(_fits_channels(vector, x, channels) for vector in own):
        return False, x
    if _wants_gradient(x, weight, bias, *rest[5:], *own):
        return False, x
    return True, convolve(number, x, weight, bias, *rest, *own)


def _folded_image(number: int, x, weight, bias, *rest):
    """In two dimensions."""
    return _folded_operator(number)(x, weight, bias, *rest)


def _folded_row(number: int, x, weight, bias, *rest):
    return _in_one_dimension(_folding(_folded_operator(number)), x, weight, bias, *rest)


def _folded_volume(number: int, x, weight, bias, *rest):
    numbers, groups, vectors = rest[:4], rest[4], rest[5:]
    given = x, weight, bias, _axes("conv_transpose3d", x, weight, numbers, 3), groups, vectors
    out = _folded_volumes(number, *given)
    if out is None:
        out = _by_slices(_folded_operator(number), (True, number), *given)
    if _is_channels_last_3d(x) or _is_channels_last_3d(weight):
        return out.contiguous(memory_format=torch.channels_last_3d)
    return out


def _folded_volumes(number: int, *given):
    """Where the kernel works in place, or None."""
    call, namespace = _FOLDED_NORMS[number][0], _folded_library(number)
    return _run_volumes(_volume_operator(namespace, call), *given)


def _folded_operator(number: int):
    """A convolution of images, as _operator of conv.py has it."""
    call, namespace = _FOLDED_NORMS[number][0], _folded_library(number)
    run = _make_run(getattr(namespace, f"run{call}").default)

    def operator(x, weight, bias, stride, padding, output_padding, dilation, groups, *vectors):
        conv = _make_conv(stride, padding, output_padding, dilation, groups)
        return run(x, weight, bias, conv, *vectors)

    return operator


def _folded_library(number: int):
    """Its namespace in torch.ops."""
    name, call = f"{_NAMESPACE}_folded{number}", _FOLDED_NORMS[number][0]
    namespace = getattr(torch.ops, name)
    if "_tconv_registry" not in vars(namespace):
        cpu, operator, cuda = (
            f"#define TCONV_FOLDED_NORM {number}\n{_of_one_call(source, call)}"
            for source in (CPU_SOURCE, OPERATOR_SOURCE, CUDA_SOURCE)
        )
        _load_library(name, (cpu, operator), cuda, in_parts=True)
        registry = torch.library.Library(name, "FRAGMENT")
        fake_run = _make_fake_run(_fake)
        torch.library.register_fake(f"{name}::run{call}", fake_run, lib=registry)
        _register_flop_formula([getattr(namespace, f"run{call}")])(_count_flops)
        namespace._tconv_registry = registry  # keeps it alive
    return namespace


def _of_one_call(source: str, call: str) -> str:
    """The part of a source that _for_each_call made of the call with that suffix; of a source of
    one call all.
    """
    return source.split("#undef TCONV_MORE_KERNELS\n")[int(call[1:])] if call else source
