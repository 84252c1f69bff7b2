"""Chains whose gradient asks nothing of the convolution's output but one condition, as that of
clamp does: a training step on CUDA keeps the answers, a byte for each output, so that backward
does not compute the convolution again.
"""

import dataclasses

from generator.calls import has_odd_rows
from generator.fuse import Fused
from generator.step_table import MASKED, Step


def asks_one_condition(chain: list[Step]) -> bool:
    """And has no operands: kernels compute it where they know no channel."""
    if not chain or not chain[0].condition:
        return False
    return not any(step.reads_values or _reads_operands(step) for step in chain[1:])


def _reads_operands(step: Step) -> bool:
    return step.reads_tensors or "channel" in step.device or "sums[" in step.gradient


def of_mask(chain: list[Step]) -> list[Step]:
    """The chain as its gradient is formed of a mask, of which nothing else is made."""
    first, *rest = chain
    gradient = first.gradient.replace(first.condition, "before != Acc(0)", 1)
    masked = dataclasses.replace(first, kind=MASKED, device="", gradient=gradient)
    return [masked, *(dataclasses.replace(step, device="") for step in rest)]


def leaves_mask(kernels: list[Fused], calls: list[Fused]) -> bool:
    """Do these calls have one kernel, of a chain as above, whose rows are of an odd number? Kernels
    whose columns are two apart leave a mask; where rows are even, that they may costs a forward
    that leaves none more than training gains (lab/training_behind.md).
    """
    if len(kernels) != 1 or kernels[0].entry != "conv":
        return False
    return asks_one_condition(kernels[0].steps) and any(
        call.dimensions == 3 and has_odd_rows(call) for call in calls
    )
