"""What takes the place of volume_gradients.py's functions where chains have operands of the
output's shape.
"""

import torch

from generator.runtime.dispatch import _outside_autocast
from generator.runtime.generated import _RESULT_CHAINS
from generator.runtime.gradient_kernels import _GRADIENT_DEVICES
from generator.runtime.gradients import _chain_backward, _chain_needs_values
from generator.runtime.group_norm_gradient_kernels import _kernel_chain_gradients
from generator.runtime.tensor_operands import _wanted_operands
from generator.runtime.volume_gradients import (
    _differentiated,
    _gradients_by_slices,
    _in_place,
    _library_volumes,
    _pytorch_gradients,
)
from generator.runtime.volume_operator import _run_volumes


class _Volumes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, kernels, other, chain, axes, groups, x, weight, bias, *vectors):
        steps, number = chain
        of_result = _RESULT_CHAINS.get(number) if steps else None
        ctx.call = other, (steps, number, of_result), axes, groups
        result = _run_volumes(kernels, x, weight, bias, axes, groups, vectors)
        # Operands, too, for create_graph=True.
        ctx.save_for_backward(x, weight, bias, *vectors, result if of_result is not None else None)
        return result

    @staticmethod
    def backward(ctx, grad):
        return None, None, None, None, None, *_outside_autocast(_gradients_of_volumes, ctx, grad)


def _gradients_of_volumes(ctx, grad) -> list:
    """Of x, weight, bias and the operands, those that are wanted."""
    other, (steps, number, of_result), axes, groups = ctx.call
    needs, (*tensors, result) = ctx.needs_input_grad[5:], ctx.saved_tensors
    if torch.is_grad_enabled():  # create_graph=True
        return _differentiated(other, tensors, axes, groups, grad, needs, True)
    x, weight, bias, *vectors = tensors
    if x.device.type not in _GRADIENT_DEVICES:
        if steps:
            return _differentiated(other, tensors, axes, groups, grad, needs, False)
        return _pytorch_gradients(grad, x, weight, axes, groups, needs)
    # To the steps a volume is an image, its slices below each other.
    plane, sums = grad.contiguous().flatten(2, 3), None
    whole = [i for i, vector in enumerate(vectors) if vector.dim() == 5]
    vectors = [v.contiguous().flatten(2, 3) if i in whole else v for i, v in enumerate(vectors)]
    if _chain_needs_values(steps):
        value, number = result, number if result is None else of_result
        if value is None:
            value = _library_volumes(x.contiguous(), weight, bias, axes, groups)
        if value is None:
            return _differentiated(other, tensors, axes, groups, grad, needs, False)
        plane, sums, vector_grads = _kernel_chain_gradients(
            *(plane, value.flatten(2, 3), vectors, needs[2], False, number),
            *(whole, _wanted_operands(needs[3:], whole)),
        )
    else:
        plane, vector_grads = _chain_backward(steps, plane, None, vectors)
    shape = grad.shape
    grad = plane.contiguous().view(shape)
    operands = grad, x, weight, axes, groups
    in_place = _in_place(*operands, needs[:2])
    missing = [need and made is None for need, made in zip(needs[:2], in_place, strict=True)]
    by_slices = _gradients_by_slices(*operands, missing)
    if needs[2] and sums is None:
        sums = grad.sum((0, 2, 3, 4))
    pairs = zip(in_place, by_slices, strict=True)
    found = [by_slice if made is None else made for made, by_slice in pairs]
    for i in whole:
        if vector_grads[i] is not None:
            vector_grads[i] = vector_grads[i].view(shape)
    return [*found, sums, *vector_grads]
