"""The passes that can be timed: what is called on the clock, and what is made ready off it.

"inference" is forward under no_grad; with --backward there are "both", a training step's forward
and backward, "forward", its forward alone, and "backward", its backward alone: the forward that it
needs is run before the clock starts.
"""

from collections.abc import Callable, Sequence

import torch

from harness.judge.edits import floating
from harness.measure import clock

INFERENCE, BOTH, FORWARD, BACKWARD = "inference", "both", "forward", "backward"
PARTS = (FORWARD, BACKWARD)


def timed_pass(
    name: str,
    timed: Callable,
    model: torch.nn.Module,
    base: Sequence,
    grad_output: torch.Tensor | None,
    parameters: Sequence[torch.nn.Parameter | None],
) -> tuple[Callable, Callable[[float], list]]:
    """(call, prepare) for a stopwatch: `prepare(scale)` makes the arguments of one `call`.

    `timed` is the model or what was compiled of it. "backward" gives the gradients of the inputs
    and of `parameters` in a list, None where there is none; the others the output.
    """
    if name == INFERENCE:
        return clock.forward_call(timed), lambda scale: clock.scaled(base, scale)
    leaves = clock.training_prepare(model, base)
    if name == BOTH:
        return clock.training_call(timed, grad_output), leaves
    if name == FORWARD:
        return timed, leaves  # its graph is freed off the clock

    def prepare(scale: float) -> list:
        arguments = leaves(scale)
        return [timed(*arguments), floating(arguments)]

    def call(output: torch.Tensor, inputs: list) -> list:
        output.backward(grad_output)
        return [None if holder is None else holder.grad for holder in (*inputs, *parameters)]

    return call, prepare
