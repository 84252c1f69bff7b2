"""Weights that cannot be copied: both models are constructed from the same seed instead.

A solution may keep the reference's weights in another shape, so that no entry of its state_dict is
one of the reference's. KernelBench copies nothing, and takes it if both constructors draw the same
from the same seed. Each case then has another seed in place of other weights.
"""

from harness.judge import check
from harness.judge.truth import Expected

HOW = "not copied: both models are constructed from the same seed"


def without_parameters(answer: Expected) -> Expected:
    """The answer with the gradients of inputs alone: whose the others are is not known."""
    count = sum(name.startswith("input ") for name in answer.gradient_names)
    answer.gradient_names = answer.gradient_names[:count]
    answer.gradient_specs = answer.gradient_specs[:count]
    answer.gradients = answer.gradients[:count]
    answer.own_gradients = answer.own_gradients[:count]
    return answer


def require_right_state(
    after: dict, before: dict, parameters: set, answer: Expected, precision: str, magnified: float
) -> None:
    """Raise Rejected unless the solution's parameters kept their bits, and those of its buffers
    that have name and shape of one of the reference's are as PyTorch updates them.
    """
    buffers = {
        name
        for name, value in answer.own_buffers.items()
        if name in before and before[name].shape == value.shape and name not in parameters
    }
    judged = [name for name in before if name in parameters or name in buffers]
    if set(after) == set(before):
        after, before = ({name: state[name] for name in judged} for state in (after, before))
    check.require_right_state(after, before, answer, precision, magnified)
