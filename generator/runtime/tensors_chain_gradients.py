"""What takes the place of chain_gradients.py's functions where chains have operands of the output's
shape.
"""

from generator.runtime.allocation import _ALLOCATION
from generator.runtime.arguments import _Conv
from generator.runtime.chain_gradients import _MOST_VECTORS, _OF_BACKWARD, _chain_kernels
from generator.runtime.gradient_kernels import _fake_backward, _geometry
from generator.runtime.registration import _count_flops
from generator.runtime.tensor_operands import _operand_bits, _operand_gradients


def _fake_chain_backward(grad, x, weight, *args):
    of_conv, behind = args[:_OF_BACKWARD], args[_OF_BACKWARD + 4 + _MOST_VECTORS :]
    channels, wanted = grad.shape[1], args[-1]
    return (
        *_fake_backward(grad, x, weight, *of_conv),
        *[x.new_empty((channels if wanted else 0,)) for wanted in behind[:2]],
        x.new_empty((_MOST_VECTORS, channels)),
        x.new_empty((wanted.bit_count(), *grad.shape)),
    )


def _count_chain_flops(grad_shape, x_shape, weight_shape, *args, out_shape=None, **kwargs) -> int:
    """Of the convolution's output, where the chain reads nothing else, and of its gradients."""
    times = (args[-3] is None) + sum(args[_OF_BACKWARD - 3 : _OF_BACKWARD - 1])
    return times * _count_flops(x_shape, weight_shape)


def _kernel_chained_gradients(
    grad, tensors, conv: _Conv, needs, norm, norm_needs, vectors, chain, value=None, whole=(), of=()
) -> tuple:
    """(gradients of `tensors`, which are x, weight and bias; of GroupNorm's weight and bias; of the
    operands of the `chain` of that number). `norm`: GroupNorm's weight, number of groups and eps.
    value: what the chain's gradient reads, where that is not the convolution's output. None for a
    gradient that is not in `needs` or `norm_needs`, and for an operand in `whole`, of the output's
    shape, that is not in `of`.
    """
    x, weight, bias = tensors
    batched = x if x.dim() == 4 else x.unsqueeze(0)
    given = *vectors, *[None] * (_MOST_VECTORS - len(vectors))
    kernels = _chain_kernels()
    with _ALLOCATION:
        *grads, of_vectors, of_tensors = kernels(
            *(grad, batched, weight, *_geometry(conv), *needs),
            *(bias, *norm, *given, *norm_needs, chain, value, *_operand_bits(whole, of)),
        )
    wanted = (*needs, *norm_needs)
    grad_x, *rest = [g if asked else None for g, asked in zip(grads, wanted, strict=True)]
    if needs[0] and batched is not x:
        grad_x = grad_x.view(x.shape)
    of_operands = _operand_gradients(of_vectors, of_tensors, len(vectors), whole, of)
    return (grad_x, *rest[:2]), tuple(rest[2:]), of_operands
