"""The operator of kernels_src/binding/operator_depth.h, of a solution or of its gradients' library:
transposed convolutions of three dimensions, where Hopper's or the CPU's kernel works in place.
"""

import math as _math

import torch
from torch.utils.flop_counter import register_flop_formula as _register_flop_formula

from generator.runtime.allocation import _ALLOCATION
from generator.runtime.precision import _tf32_allowed


def _count_volume_flops(x_shape, weight_shape, *args, out_shape=None, **kwargs) -> int:
    """As torch.utils.flop_counter counts PyTorch's own; nothing where the operator declines."""
    if out_shape is None or 0 in out_shape:
        return 0
    return 2 * x_shape[0] * _math.prod(x_shape[2:]) * _math.prod(weight_shape)


def _volume_operator(namespace, call: str = ""):
    """The operator in a namespace of torch.ops; to fake tensors it declines."""
    return _declining_operator(namespace, f"run_depth{call}", _count_volume_flops)


def _declining_operator(namespace, name: str, count_flops, results: int = 1):
    """An operator whose empty results say that it declines, as it does to fake tensors."""
    kernels = getattr(namespace, name)
    if f"_tconv_{name}" not in vars(namespace):
        registry = torch.library.Library(namespace.name, "FRAGMENT")
        qualified = f"{namespace.name}::{name}"

        def fake(first, *_, **__):
            made = [first.new_empty((0,)) for _ in range(results)]
            return tuple(made) if results > 1 else made[0]

        torch.library.register_fake(qualified, fake, lib=registry)
        _register_flop_formula([kernels])(count_flops)
        setattr(namespace, f"_tconv_{name}", registry)  # keeps it alive
    return kernels.default


def _run_volumes(
    kernels, x, weight, bias, axes, groups: int, vectors=(), **kept
) -> torch.Tensor | None:
    """The contiguous result for x [batch, channels, depth, height, width], or None where the
    operator declines. axes: stride, padding, output padding and dilation of depth, height, width.
    kept: of a chain that begins with an operand of the output's shape, `kept`: a tensor for what
    that is joined to.
    """
    numbers = [number for axis in axes for number in axis]
    with _ALLOCATION:
        out = kernels(x, weight, bias, *numbers, groups, _tf32_allowed(), *vectors, **kept)
    return out.unflatten(0, (x.shape[0], -1)) if out.numel() > 0 else None
