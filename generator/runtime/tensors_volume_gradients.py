"""What takes the place of volume_gradients.py's functions where chains have operands of the
output's shape, which come as volumes. All are saved, for create_graph=True.
"""

from generator.runtime.arguments import _output_size
from generator.runtime.gradient_kernels import _GRADIENT_DEVICES
from generator.runtime.group_norm_gradient_kernels import _kernel_chain_gradients
from generator.runtime.step_gradients import _Add, _Whole
from generator.runtime.tensor_operands import _wanted_operands
from generator.runtime.volume_operator import _run_volumes


def _run_with_value(steps, kernels, x, weight, bias, axes, groups, vectors) -> tuple:
    """(the operator's result, as _run_volumes has it; what its chain of these steps begins with, or
    None). Where the first of them reads a tensor, kernels on CUDA have written that anyway, and the
    chain's result lies elsewhere: backward need not compute it again.
    """
    operands = kernels, x, weight, bias, axes, groups, vectors
    reads = bool(steps) and isinstance(getattr(steps[0], "operand", None), _Whole)
    if not reads or x.device.type not in _GRADIENT_DEVICES:
        return _run_volumes(*operands), None
    sizes = [
        _output_size(*of_axis) for of_axis in zip(x.shape[2:], weight.shape[2:], *axes, strict=True)
    ]
    if min(sizes) < 1:
        return _run_volumes(*operands), None
    kept = x.new_empty((x.shape[0], weight.shape[1] * groups, *sizes))
    result = _run_volumes(*operands, kept=kept)
    return result, None if result is None else kept


def _before_chain(grad, value, vectors, needs, steps, chain: int) -> tuple:
    """(gradient of `value`, from that of its chain, of these steps and of that number; its sums per
    channel or None; gradients of the chain's operands); needs: of the sums, then of the operands.
    """
    whole = [i for i, vector in enumerate(vectors) if vector.dim() == 5]
    planes = [v.contiguous().flatten(2, 3) if i in whole else v for i, v in enumerate(vectors)]
    wanted = _wanted_operands(needs[1:], whole)
    shared = _shared_operand(steps, wanted)
    wanted = [i for i in wanted if i != shared]
    of_value, sums, of_operands = _kernel_chain_gradients(
        grad, value, planes, needs[0], False, chain, whole, wanted
    )
    if shared is not None:
        of_operands[shared] = of_value
    return of_value, sums, of_operands


def _shared_operand(steps, wanted: list) -> int | None:
    """One of these operands whose gradient is that of what the chain begins with, so that it needs
    no memory of its own: added ahead of every other step. One alone: what changes its gradient in
    place must not change another's.
    """
    for step in steps:
        if not isinstance(step, _Add) or step.v_sign < 0:
            return None
        index = step.operand.index if isinstance(step.operand, _Whole) else None
        if index in wanted and step.operand_sign > 0:
            return index
    return None
