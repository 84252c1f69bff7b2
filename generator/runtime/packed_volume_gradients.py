"""Gradients of volumes and of the chains behind them by one operator, which forms those as it packs
them (kernels_src/binding/operator_depth_chain_gradients.h): what replaces functions of
volume_gradients.py.
"""

from generator.runtime.allocation import _ALLOCATION
from generator.runtime.gradient_kernels import _gradient_library
from generator.runtime.precision import _tf32_allowed
from generator.runtime.volume_gradients import _in_eights
from generator.runtime.volume_operator import _count_volume_flops, _declining_operator

_MOST_VECTORS = 4  # kMaxChannelVectors in kernels_src/call.h


def _count_packed_flops(
    grad_shape, x_shape, weight_shape, *args, value=None, out_shape=None, **kwargs
) -> int:
    """Of both gradients, and of the output where that is computed again."""
    of_one = _count_volume_flops(x_shape, weight_shape, out_shape=out_shape[0])
    return (2 if value is not None else 3) * of_one


def _packed_gradients(grad, x, weight, bias, axes, groups: int, of_chain, needs) -> list | None:
    """What _gradients_of_volumes returns, or None where another way is to be taken. of_chain: its
    operands; its result, where backward reads that, or None; its number.
    """
    if not (needs[0] and needs[1]):
        return None
    vectors, value, number = of_chain
    channels, plain = x.shape[1], x.contiguous()
    wide, long = _in_eights(plain, weight, groups)
    library, numbers = _gradient_library(), [number for axis in axes for number in axis]
    kernels = _declining_operator(library, "depth_chain_gradients", _count_packed_flops, 4)
    given = *vectors, *[None] * (_MOST_VECTORS - len(vectors))
    behind = {"value": value, "chain": number, "need_bias": needs[2]}
    with _ALLOCATION:
        of_x, of_weight, of_bias, of_vectors = kernels(
            grad, wide, long, bias, *numbers, groups, _tf32_allowed(), *given, **behind
        )
    if of_x.numel() == 0:
        return None
    grad_x, grad_weight = of_x.view(wide.shape), of_weight.view(long.shape)
    if wide is not plain:
        grad_x, grad_weight = grad_x[:, :channels].contiguous(), grad_weight[:channels]
    return [grad_x, grad_weight, of_bias if needs[2] else None, *of_vectors.unbind(0)]
