"""What takes the place of conv.py's function where one operator has the chain's gradients and the
convolution's (chain_gradients.py).
"""

from generator.runtime.arguments import _Conv
from generator.runtime.chain_gradients import _NO_NORM, _kernel_chained_gradients
from generator.runtime.generated import _CHAIN, _CHAIN_NUMBER
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


def _gradients(ctx, grad) -> tuple:
    """(gradients of x, weight and bias, gradients of the vectors)"""
    saved = ctx.saved_tensors
    if saved[0].numel() == 0:
        grads = _no_gradients(saved)
        return grads[:3], grads[3:]
    conv = _Conv(*ctx.conv)
    grad, tensors = _widened(grad, saved)
    x, weight, bias, *vectors = tensors
    needs, grad = ctx.needs_input_grad[:3], _batched(grad)
    if _own_kernels(x) and _chain_needs_values(_CHAIN):
        conv_grads, _, vector_grads = _kernel_chained_gradients(
            *(grad, tensors[:3], conv, needs, _NO_NORM, (False, False), vectors, _CHAIN_NUMBER)
        )
    else:
        values = None
        if _chain_needs_values(_CHAIN):
            values = _chain_forward(_CHAIN, _conv_output(x, weight, bias, conv), vectors)
        grad, vector_grads = _chain_backward(_CHAIN, grad, values, vectors)
        conv_grads = _conv_gradients(grad, x, weight, conv, needs)
    return _narrowed(conv_grads, saved[:3]), _narrowed(vector_grads, saved[3:])
