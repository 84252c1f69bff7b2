"""The chain of a fold by PyTorch's functions, which a solution needs for no gradient."""

from generator.folds import Fold
from generator.runtime import activation_gradients, branches, step_gradients


class _RunningNorm:
    """BatchNorm by statistics that are there; its operands by their indices."""

    def __init__(
        self, eps: float, mean: int, var: int, weight: int | None = None, bias: int | None = None
    ):
        self._eps, self._indices = eps, (mean, var, weight, bias)

    def forward(self, v, vectors):
        given = (None if i is None else vectors[i].view(1, -1, 1, 1) for i in self._indices)
        mean, var, weight, bias = given
        v = (v - mean) / (var + self._eps).sqrt()
        v = v if weight is None else v * weight
        return v if bias is None else v + bias


def chain_of(fold: Fold) -> tuple:
    """Its steps, as a solution's _CHAIN has those of a call."""
    names = {"_RunningNorm": _RunningNorm}
    for module in (step_gradients, activation_gradients, branches):
        names |= vars(module)
    return tuple(eval(step.python, names) for step in fold.steps)
