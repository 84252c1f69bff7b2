"""Gradients of transposed convolutions of three dimensions whose forward works in place."""

import torch

from generator.runtime.allocation import _ALLOCATION
from generator.runtime.arguments import _Conv
from generator.runtime.dispatch import _outside_autocast
from generator.runtime.gradient_kernels import (
    _GRADIENT_DEVICES,
    _gradient_library,
    _kernel_gradients,
)
from generator.runtime.gradients import _chain_backward, _chain_needs_values
from generator.runtime.group_norm_gradient_kernels import _kernel_chain_gradients
from generator.runtime.precision import _tf32_allowed
from generator.runtime.slices import _residues, _stacked_input, _stacked_weight
from generator.runtime.volume_operator import (
    _count_volume_flops,
    _declining_operator,
    _run_volumes,
    _volume_operator,
)


def _volumes_with_gradient(kernels, other, chain, axes, groups: int, x, weight, bias, vectors):
    """The operator's result with a gradient, or None where it declines; arguments as
    _whole_volumes has them.
    """
    return _Volumes.apply(kernels, other, chain, axes, groups, x, weight, bias, *vectors)


class _Volumes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, kernels, other, chain, axes, groups, x, weight, bias, *vectors):
        ctx.call = other, chain, axes, groups
        ctx.save_for_backward(x, weight, bias, *vectors)
        return _run_volumes(kernels, x, weight, bias, axes, groups, vectors)

    @staticmethod
    def backward(ctx, grad):
        return None, None, None, None, None, *_outside_autocast(_gradients_of_volumes, ctx, grad)


def _gradients_of_volumes(ctx, grad) -> list:
    """Of x, weight, bias and the vectors, those that are wanted."""
    other, chain, axes, groups = ctx.call
    needs = ctx.needs_input_grad[5:]
    if torch.is_grad_enabled():  # create_graph=True
        return _differentiated(other, ctx.saved_tensors, axes, groups, grad, needs, True)
    x, weight, bias, *vectors = ctx.saved_tensors
    steps, number = chain
    if x.device.type not in _GRADIENT_DEVICES:
        if steps:
            return _differentiated(other, ctx.saved_tensors, axes, groups, grad, needs, False)
        return _pytorch_gradients(grad, x, weight, axes, groups, needs)
    # To the steps a volume is an image, its slices below each other.
    plane, sums = grad.contiguous().flatten(2, 3), None
    if _chain_needs_values(steps):
        value = _library_volumes(x.contiguous(), weight, bias, axes, groups)
        if value is None:
            return _differentiated(other, ctx.saved_tensors, axes, groups, grad, needs, False)
        plane, sums, vector_grads = _kernel_chain_gradients(
            plane, value.flatten(2, 3), vectors, needs[2], False, number
        )
    else:
        plane, vector_grads = _chain_backward(steps, plane, None, vectors)
    grad = plane.contiguous().view(grad.shape)
    operands = grad, x, weight, axes, groups
    grad_x = _in_place("depth_input_gradient", *operands) if needs[0] else None
    grad_weight = _in_place("depth_weight_gradient", *operands) if needs[1] else None
    missing = needs[0] and grad_x is None, needs[1] and grad_weight is None
    by_slices = _gradients_by_slices(*operands, missing)
    if needs[2] and sums is None:
        sums = grad.sum((0, 2, 3, 4))
    pairs = zip((grad_x, grad_weight), by_slices, strict=True)
    found = [by_slice if in_place is None else in_place for in_place, by_slice in pairs]
    return [*found, sums, *vector_grads]


def _pytorch_gradients(grad, x, weight, axes, groups: int, needs) -> list:
    """Of x, weight and bias, where there are no kernels of ours for them."""
    stride, padding, output_padding, dilation = axes
    found = torch.ops.aten.convolution_backward.default(
        *(grad.contiguous(), x.contiguous(), weight, [grad.shape[1]], stride, padding, dilation),
        *(True, output_padding, groups, needs[:3]),
    )
    return list(found)


def _differentiated(other, tensors, axes, groups: int, grad, needs, create_graph: bool) -> list:
    """The gradients by autograd, of the other way to the same result."""
    x, weight, bias, *vectors = tensors
    with torch.enable_grad():
        out = other(x, weight, bias, axes, groups, vectors)
        wanted = [tensor for tensor, need in zip(tensors, needs, strict=True) if need]
        found = iter(torch.autograd.grad(out, wanted, grad, create_graph=create_graph))
    return [next(found) if need else None for need in needs]


def _library_volumes(x, weight, bias, axes, groups: int) -> torch.Tensor | None:
    """The convolution alone by the gradients' library, with scales for any magnitude."""
    return _run_volumes(_volume_operator(_gradient_library()), x, weight, bias, axes, groups)


def _count_gradient_flops(
    grad_shape, x_shape, weight_shape, *args, out_shape=None, **kwargs
) -> int:
    return _count_volume_flops(x_shape, weight_shape, out_shape=out_shape)


def _in_place(name: str, grad, x, weight, axes, groups: int) -> torch.Tensor | None:
    """The gradient by an operator of kernels_src/binding/operator_depth_gradients.h; None where it
    declines.
    """
    kernels = _declining_operator(_gradient_library(), name, _count_gradient_flops)
    numbers = [number for axis in axes for number in axis]
    with _ALLOCATION:
        found = kernels(grad, x, weight, None, *numbers, groups, _tf32_allowed())
    if found.numel() == 0:
        return None
    return found.view(x.shape if name == "depth_input_gradient" else weight.shape)


def _gradients_by_slices(grad, x, weight, axes, groups: int, needs) -> list:
    """Gradients of x and weight (None where not in `needs`) of contiguous grad, by the kernels of
    two dimensions, residue by residue as dimensions.py computes the output.
    """
    pairs = zip((x, weight), needs, strict=True)
    found = [torch.zeros_like(tensor) if need else None for tensor, need in pairs]
    if True not in needs:
        return found
    depth = tuple(axis[0] for axis in axes)
    conv = _Conv(*[axis[1:] for axis in axes], groups)
    batch, size, stride = x.shape[0], x.shape[2], depth[0]
    residues = _residues(size, grad.shape[2], weight.shape[2], *depth)
    for residue, (count, reached) in enumerate(residues):
        if not reached:
            continue
        taps, bases = zip(*reached, strict=True)
        images = grad[:, :, residue::stride].transpose(1, 2).flatten(0, 1)
        stacked = _stacked_input(x, groups, count, bases)
        kernel = _stacked_weight(weight, groups, taps)
        wanted = (*needs, False)
        grad_x, grad_kernel, _ = _kernel_gradients(images, stacked, kernel, conv, wanted)
        if needs[1]:
            # group, tap, channel, out_channel of the group, height taps, width taps
            parts = grad_kernel.view(groups, len(taps), -1, *grad_kernel.shape[1:])
            parts = parts.permute(0, 2, 3, 1, 4, 5).flatten(0, 1)
            spacing = taps[0] - taps[1] if len(taps) > 1 else 1
            found[1][:, :, taps[-1] : taps[0] + 1 : spacing] = parts.flip(2)
        if needs[0]:
            parts = grad_x.view(batch, count, groups, len(taps), -1, *x.shape[3:])
            for tap, base in enumerate(bases):
                first, end = max(0, -base), min(count, size - base)
                part = parts[:, first:end, :, tap].flatten(2, 3).transpose(1, 2)
                found[0][:, :, first + base : end + base] += part
    return found
