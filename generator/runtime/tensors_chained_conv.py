"""What takes the place of chained_conv.py's functions where a chain has operands of the output's
shape.
"""

from generator.runtime.arguments import _Conv
from generator.runtime.chain_gradients import _NO_NORM, _kernel_chained_gradients
from generator.runtime.generated import _CHAIN, _CHAIN_NUMBER, _KEEPS_RESULT, _TENSORS
from generator.runtime.gradients import (
    _batched,
    _chain_backward,
    _chain_forward,
    _chain_needs_values,
    _conv_gradients,
    _conv_output,
    _no_gradients,
    _own_kernels,
)
from generator.runtime.low_precision import _narrowed, _widened
from generator.runtime.tensor_operands import (
    _batched_operands,
    _kept_operands,
    _of_operands,
    _wanted_operands,
)


def _save(ctx, x, weight, bias, conv, vectors, result) -> None:
    ctx.conv = conv
    read = _chain_needs_values(_CHAIN) and not _KEEPS_RESULT
    kept = _kept_operands(vectors, _TENSORS, read)
    ctx.save_for_backward(x, weight, bias, *kept, *((result,) if _KEEPS_RESULT else ()))


def _gradients(ctx, grad) -> tuple:
    """(gradients of x, weight and bias, gradients of the operands)"""
    saved, result = ctx.saved_tensors, None
    if _KEEPS_RESULT:
        *saved, result = saved
    if saved[0].numel() == 0:
        grads = _no_gradients(saved)
        return grads[:3], [grad if made is None else made for made in grads[3:]]
    conv = _Conv(*ctx.conv)
    grad, tensors = _widened(grad, saved)
    x, weight, bias, *vectors = tensors
    vectors, grad = _batched_operands(vectors, _TENSORS), _batched(grad)
    needs, of_operands = ctx.needs_input_grad[:3], ctx.needs_input_grad[-len(vectors) :]
    if _KEEPS_RESULT:
        result = _batched(result).to(grad.dtype)
    if _own_kernels(x) and _chain_needs_values(_CHAIN):
        conv_grads, _, vector_grads = _kernel_chained_gradients(
            *(grad, tensors[:3], conv, needs, _NO_NORM, (False, False), vectors, _CHAIN_NUMBER),
            *(result, _TENSORS, _wanted_operands(of_operands, _TENSORS)),
        )
    else:
        values = None
        if _KEEPS_RESULT:
            values = [*[None] * len(_CHAIN), result]
        elif _chain_needs_values(_CHAIN):
            values = _chain_forward(_CHAIN, _conv_output(x, weight, bias, conv), vectors)
        grad, vector_grads = _chain_backward(_CHAIN, grad, values, vectors)
        conv_grads = _conv_gradients(grad, x, weight, conv, needs)
    operand_grads = _of_operands(vector_grads, saved[3:], saved[0], _TENSORS)
    return _narrowed(conv_grads, saved[:3]), operand_grads
