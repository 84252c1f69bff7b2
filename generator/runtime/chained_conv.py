"""What takes the place of conv.py's functions where one operator has the chain's gradients and the
convolution's (chain_gradients.py). Where the chain's gradient can be formed from its result, as
PyTorch's own is, forward keeps that, which costs nothing, and backward does not compute the
convolution again.
"""

from generator.runtime.arguments import _Conv, _make_conv
from generator.runtime.chain_gradients import _NO_NORM, _kernel_chained_gradients
from generator.runtime.conv import _backward_eager, _run
from generator.runtime.generated import _CHAIN, _CHAIN_NUMBER, _KEEPS_RESULT
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
from generator.runtime.result_functions import _make_result_functions


def _save(ctx, x, weight, bias, conv, vectors, result) -> None:
    ctx.conv = conv
    ctx.save_for_backward(x, weight, bias, *vectors, *((result,) if _KEEPS_RESULT else ()))


def _gradients(ctx, grad) -> tuple:
    """(gradients of x, weight and bias, gradients of the vectors)"""
    saved, result = ctx.saved_tensors, None
    if _KEEPS_RESULT:
        *saved, result = saved
    if saved[0].numel() == 0:
        grads = _no_gradients(saved)
        return grads[:3], grads[3:]
    conv = _Conv(*ctx.conv)
    grad, tensors = _widened(grad, saved)
    x, weight, bias, *vectors = tensors
    needs, grad = ctx.needs_input_grad[:3], _batched(grad)
    if _KEEPS_RESULT:
        result = _batched(result).to(grad.dtype)
    if _own_kernels(x) and _chain_needs_values(_CHAIN):
        conv_grads, _, vector_grads = _kernel_chained_gradients(
            *(grad, tensors[:3], conv, needs, _NO_NORM, (False, False), vectors, _CHAIN_NUMBER),
            result,
        )
    else:
        values = None
        if _KEEPS_RESULT:
            values = [*[None] * len(_CHAIN), result]
        elif _chain_needs_values(_CHAIN):
            values = _chain_forward(_CHAIN, _conv_output(x, weight, bias, conv), vectors)
        grad, vector_grads = _chain_backward(_CHAIN, grad, values, vectors)
        conv_grads = _conv_gradients(grad, x, weight, conv, needs)
    return _narrowed(conv_grads, saved[:3]), _narrowed(vector_grads, saved[3:])


def _setup_traced(ctx, inputs, output) -> None:
    x, weight, bias, *args = inputs
    _save(ctx, x, weight, bias, _make_conv(*args[:5]), args[5:], output)


def _save_eager(ctx, args, result) -> None:
    x, weight, bias, conv, *vectors = args
    _save(ctx, x, weight, bias, conv, vectors, result)


_run_with_gradient, _transformed_run = _make_result_functions(_run, _save_eager, _backward_eager)
