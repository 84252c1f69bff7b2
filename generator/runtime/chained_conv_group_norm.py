"""What takes the place of conv_group_norm.py's function where one operator has GroupNorm's
gradients, the chain's and the convolution's (chain_gradients.py).
"""

from generator.runtime.arguments import _Conv
from generator.runtime.chain_gradients import _kernel_chained_gradients
from generator.runtime.generated import _CHAIN, _CHAIN_NUMBER
from generator.runtime.gradients import (
    _batched,
    _chain_backward,
    _chain_forward,
    _conv_gradients,
    _conv_output,
    _group_norm_gradients,
    _no_gradients,
    _own_kernels,
)
from generator.runtime.low_precision import _narrowed, _widened


def _gradients(ctx, grad, norm_needs) -> tuple:
    """(gradients of x, weight and bias, of GroupNorm's weight and bias, of the vectors)"""
    saved = ctx.saved_tensors
    if saved[0].numel() == 0:
        grads = _no_gradients(saved)
        return grads[:3], grads[3:5], grads[5:]
    conv = _Conv(*ctx.conv)
    grad, tensors = _widened(grad, saved)
    x, weight, bias, norm_weight, _, *vectors = tensors
    needs = ctx.needs_input_grad[:3]
    norm = norm_weight, ctx.num_groups, ctx.norm_eps
    if _own_kernels(x):
        conv_grads, norm_grads, vector_grads = _kernel_chained_gradients(
            *(_batched(grad), tensors[:3], conv, needs, norm, norm_needs, vectors, _CHAIN_NUMBER)
        )
    else:  # ATen's GroupNorm wants its input contiguous
        value = _conv_output(x, weight, bias, conv).contiguous()
        values = _chain_forward(_CHAIN, value, vectors)
        grad, *norm_grads = _group_norm_gradients(grad, values[-1], *norm, norm_needs)
        grad, vector_grads = _chain_backward(_CHAIN, grad, values, vectors)
        conv_grads = _conv_gradients(grad, x, weight, conv, needs)
    parts = (conv_grads, saved[:3]), (norm_grads, saved[3:5]), (vector_grads, saved[5:])
    return tuple(_narrowed(*part) for part in parts)
