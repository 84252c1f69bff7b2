"""What takes the place of conv.py's functions where a chain has operands of the output's shape."""

from generator.runtime.arguments import _Conv
from generator.runtime.generated import _CHAIN, _CHAIN_NUMBER, _TENSORS
from generator.runtime.gradient_kernels import _slides
from generator.runtime.gradients import (
    _batched,
    _chain_backward,
    _chain_forward,
    _chain_needs_values,
    _conv_gradients_with,
    _conv_output,
    _no_gradients,
    _own_kernels,
)
from generator.runtime.group_norm_gradient_kernels import _kernel_chain_gradients
from generator.runtime.low_precision import _narrowed, _widened
from generator.runtime.tensor_operands import (
    _batched_operands,
    _kept_operands,
    _of_operands,
    _wanted_operands,
)


def _save(ctx, x, weight, bias, conv, vectors) -> None:
    ctx.conv = conv
    kept = _kept_operands(vectors, _TENSORS, _chain_needs_values(_CHAIN))
    ctx.save_for_backward(x, weight, bias, *kept)


def _gradients(ctx, grad) -> tuple:
    """(gradients of x, weight and bias, gradients of the operands)"""
    saved = ctx.saved_tensors
    if saved[0].numel() == 0:
        grads = _no_gradients(saved)
        return grads[:3], [grad if made is None else made for made in grads[3:]]
    conv = _Conv(*ctx.conv)
    grad, tensors = _widened(grad, saved)
    x, weight, bias, *vectors = tensors
    vectors, grad = _batched_operands(vectors, _TENSORS), _batched(grad)
    needs, of_operands = ctx.needs_input_grad[:3], ctx.needs_input_grad[-len(vectors) :]
    values = sums = None
    if _chain_needs_values(_CHAIN):
        values = [_conv_output(x, weight, bias, conv)]
    if values and _own_kernels(x):  # the values' memory then serves the convolution's gradients
        wanted = _wanted_operands(of_operands, _TENSORS)
        grad, sums, vector_grads = _kernel_chain_gradients(
            *(grad, values.pop(), vectors, needs[2], _slides(conv), _CHAIN_NUMBER),
            *(_TENSORS, wanted),
        )
    else:
        values = values and _chain_forward(_CHAIN, values[0], vectors)
        grad, vector_grads = _chain_backward(_CHAIN, grad, values, vectors)
    conv_grads = _conv_gradients_with(sums, grad, x, weight, conv, needs)
    operand_grads = _of_operands(vector_grads, saved[3:], saved[0], _TENSORS)
    return _narrowed(conv_grads, saved[:3]), operand_grads
