"""Gradients of transposed convolutions of three dimensions whose forward works in place."""

import torch

from generator.runtime.allocation import _ALLOCATION
from generator.runtime.arguments import _Conv
from generator.runtime.dispatch import _outside_autocast
from generator.runtime.generated import _RESULT_CHAINS
from generator.runtime.gradient_kernels import (
    _GRADIENT_DEVICES,
    _gradient_library,
    _kernel_gradients,
)
from generator.runtime.gradients import _chain_backward, _chain_needs_values
from generator.runtime.group_norm_gradient_kernels import _kernel_chain_gradients
from generator.runtime.precision import _tf32_allowed
from generator.runtime.slices import _residues, _stacked_input, _stacked_weight
from generator.runtime.step_gradients import _Add, _Channel
from generator.runtime.volume_operator import (
    _count_volume_flops,
    _declining_operator,
    _run_volumes,
    _volume_operator,
)

_ONE_TAP = _Conv((1, 1), (0, 0), (0, 0), (1, 1), 1)


def _volumes_with_gradient(kernels, other, chain, axes, groups: int, x, weight, bias, vectors):
    """The operator's result with a gradient, or None where it declines; arguments as
    _whole_volumes has them.
    """
    return _Volumes.apply(kernels, other, chain, axes, groups, x, weight, bias, *vectors)


class _Volumes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, kernels, other, chain, axes, groups, x, weight, bias, *vectors):
        steps, number = chain
        of_result = _RESULT_CHAINS.get(number) if steps else None
        ctx.call = other, (steps, number, of_result), axes, groups
        operands = kernels, x, weight, bias, axes, groups, vectors
        if of_result is None:
            result, value = _run_with_value(steps, *operands)
        else:
            result = value = _run_volumes(*operands)
        ctx.save_for_backward(x, weight, bias, *vectors, value)
        return result

    @staticmethod
    def backward(ctx, grad):
        return None, None, None, None, None, *_outside_autocast(_gradients_of_volumes, ctx, grad)


def _gradients_of_volumes(ctx, grad) -> list:
    """Of x, weight, bias and the vectors, those that are wanted."""
    other, (steps, number, of_result), axes, groups = ctx.call
    needs, (*tensors, value) = ctx.needs_input_grad[5:], ctx.saved_tensors
    if torch.is_grad_enabled():  # create_graph=True
        return _differentiated(other, tensors, axes, groups, grad, needs, True)
    x, weight, bias, *vectors = tensors
    if x.device.type not in _GRADIENT_DEVICES:
        if steps:
            return _differentiated(other, tensors, axes, groups, grad, needs, False)
        return _pytorch_gradients(grad, x, weight, axes, groups, needs)
    sums, vector_grads = None, [None] * len(vectors)
    adds = _added_operands(steps)
    if adds is None or not _repeats_slices(grad):
        grad = grad.contiguous()
    if adds is not None:
        if True in needs[2:]:
            sums = _channel_sums(grad)
        for index, sign in adds:
            vector_grads[index] = sign * sums if needs[3 + index] else None
    else:
        # To the steps a volume is an image, its slices below each other.
        plane = grad.flatten(2, 3)
        by_kernels = _chain_needs_values(steps)
        if not by_kernels:
            value = grad  # no step reads it
        elif of_result is not None:
            number = of_result
        elif value is None and _lacks_eights(x, groups):  # by the kernels for few channels
            value = _library_volumes(x.contiguous(), weight, bias, axes, groups)
        of_chain = vectors, value, number
        at_once = _packed_gradients(grad, x, weight, bias, axes, groups, of_chain, needs)
        if at_once is not None:
            return at_once
        if value is None:
            value = _library_volumes(x.contiguous(), weight, bias, axes, groups)
        if value is None:
            return _differentiated(other, tensors, axes, groups, grad, needs, False)
        # Sums of an operand may cancel: those of the kernels are fp64 in the end.
        pairs = zip(needs[3:], vectors, strict=True)
        by_kernels |= any(need and vector.dim() == 1 for need, vector in pairs)
        if by_kernels:
            plane, sums, vector_grads = _before_chain(
                plane, value.flatten(2, 3), vectors, needs[2:], steps, number
            )
        else:
            plane, vector_grads = _chain_backward(steps, plane, None, vectors)
        grad = plane.contiguous().view(grad.shape)
    operands = grad, x, weight, axes, groups
    in_place = _in_place(*operands, needs[:2])
    missing = [need and made is None for need, made in zip(needs[:2], in_place, strict=True)]
    by_slices = _gradients_by_slices(*operands, missing)
    if needs[2] and sums is None:
        sums = _channel_sums(grad)
    pairs = zip(in_place, by_slices, strict=True)
    found = [by_slice if made is None else made for made, by_slice in pairs]
    of_operands = [g if g is None or g.dim() < 4 else g.view(grad.shape) for g in vector_grads]
    return [*found, sums if needs[2] else None, *of_operands]


def _added_operands(steps) -> list | None:
    """(index of an operand, its sign) of each that the steps add for a channel, where they do
    nothing else, so that the gradient is what it was; else None.
    """
    found = []
    for step in steps:
        if type(step) is not _Add or step.v_sign < 0:
            return None
        if type(step.operand) is _Channel:
            found.append((step.operand.index, step.operand_sign))
        elif not isinstance(step.operand, int | float):
            return None
    return found


def _repeats_slices(grad) -> bool:
    """Is it one slice for each channel of a sample, as that of a mean over the depth is?"""
    return grad.stride(2) == 0 and grad[:, :, 0].is_contiguous()


def _channel_sums(grad) -> torch.Tensor:
    """The bias's gradient. Of slices below each other that of a layer whose kernel is of one tap,
    and of whose input and weight nothing is read.
    """
    if grad.stride(2) == 0:
        return grad[:, :, 0].sum((0, 2, 3)) * grad.shape[2]
    image, nothing = grad.flatten(2, 3), grad.new_empty(1)
    x = nothing.expand(image.shape[0], 1, *image.shape[2:])
    weight = nothing.expand(1, image.shape[1], 1, 1)
    return _kernel_gradients(image, x, weight, _ONE_TAP, (False, False, True))[2]


def _run_with_value(steps, *operands) -> tuple:
    """(the operator's result, as _run_volumes has it; what its chain of these steps begins with,
    or None)
    """
    return _run_volumes(*operands), None


def _packed_gradients(grad, x, weight, bias, axes, groups: int, of_chain, needs) -> list | None:
    """What _gradients_of_volumes returns, or None where another way is to be taken. of_chain: its
    operands; its result, where backward reads that, or None; its number.
    """
    return None


def _before_chain(grad, value, vectors, needs, steps, chain: int) -> tuple:
    """(gradient of `value`, from that of its chain, of these steps and of that number; its sums per
    channel or None; gradients of the chain's operands); needs: of the sums, then of the operands.
    """
    return _kernel_chain_gradients(grad, value, vectors, needs[0], False, chain)


def _pytorch_gradients(grad, x, weight, axes, groups: int, needs) -> list:
    """Of x, weight and bias, where there are no kernels of ours for them."""
    stride, padding, output_padding, dilation = axes
    found = torch.ops.aten.convolution_backward.default(
        *(grad.contiguous(), x.contiguous(), weight, [grad.shape[1]], stride, padding, dilation),
        *(True, output_padding, groups, needs[:3]),
    )
    return list(found)


def _differentiated(other, tensors, axes, groups: int, grad, needs, create_graph: bool) -> list:
    """The gradients by autograd, of the other way to the same result: of views, for one tensor may
    come twice, or be computed from another one, whose gradient then has only its own part.
    """
    with torch.enable_grad():
        views = [None if tensor is None else tensor.view_as(tensor) for tensor in tensors]
        x, weight, bias, *vectors = views
        out = other(x, weight, bias, axes, groups, vectors)
        wanted = [view for view, need in zip(views, needs, strict=True) if need]
        found = iter(torch.autograd.grad(out, wanted, grad, create_graph=create_graph))
    return [next(found) if need else None for need in needs]


def _library_volumes(x, weight, bias, axes, groups: int) -> torch.Tensor | None:
    """The convolution alone by the gradients' library, with scales for any magnitude."""
    return _run_volumes(_volume_operator(_gradient_library()), x, weight, bias, axes, groups)


def _count_gradient_flops(
    grad_shape, x_shape, weight_shape, *args, out_shape=None, **kwargs
) -> int:
    both = (
        isinstance(out_shape, tuple) and len(out_shape) == 2 and not isinstance(out_shape[0], int)
    )
    of_one = _count_volume_flops(
        x_shape, weight_shape, out_shape=out_shape[0] if both else out_shape
    )
    return 2 * of_one if both else of_one


def _in_place(grad, x, weight, axes, groups: int, needs) -> list:
    """Gradients of x and weight by the operators of
    kernels_src/binding/operator_depth_gradients.h; None where not in `needs`, or declined.
    """
    library, numbers = _gradient_library(), [number for axis in axes for number in axis]
    channels = x.shape[1]
    x, weight = _in_eights(x, weight, groups)

    def call(name: str, results: int = 1):
        kernels = _declining_operator(library, name, _count_gradient_flops, results)
        with _ALLOCATION:
            return kernels(grad, x, weight, None, *numbers, groups, _tf32_allowed())

    found = [None, None]
    if needs[0] and needs[1]:
        found = list(call("depth_gradients", 2))
    if needs[0] and (found[0] is None or found[0].numel() == 0):
        found[0] = call("depth_input_gradient")
    if needs[1] and (found[1] is None or found[1].numel() == 0):
        found[1] = call("depth_weight_gradient")
    grad_x, grad_weight = (
        None if made is None or made.numel() == 0 else made.view(tensor.shape)
        for made, tensor in zip(found, (x, weight), strict=True)
    )
    if channels < x.shape[1]:
        grad_x = None if grad_x is None else grad_x[:, :channels].contiguous()
        grad_weight = None if grad_weight is None else grad_weight[:channels]
    return [grad_x, grad_weight]


def _lacks_eights(x, groups: int) -> bool:
    return groups == 1 and x.shape[1] % 8 != 0


def _in_eights(x, weight, groups: int) -> tuple:
    """Both with a multiple of eight input channels, as the kernels read them, zeros behind: the
    output's gradient, which is larger by far, need not be copied then.
    """
    if not _lacks_eights(x, groups):
        return x, weight
    channels = x.shape[1]
    more = -channels % 8
    wide = x.new_zeros((x.shape[0], channels + more, *x.shape[2:]))
    wide[:, :channels] = x
    long = weight.new_zeros((channels + more, *weight.shape[1:]))
    long[:channels] = weight
    return wide, long


def _gradients_by_slices(grad, x, weight, axes, groups: int, needs) -> list:
    """Gradients of x and weight (None where not in `needs`) by the kernels of two dimensions,
    residue by residue as dimensions.py computes the output.
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
