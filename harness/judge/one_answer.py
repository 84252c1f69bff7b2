"""Whether a reference has an answer to hold others against: one that it would give again."""

import contextlib
from collections.abc import Iterator

import torch
from torch import nn

from harness.errors import UsageError
from harness.judge.ambient import changed, random_states


class NoOneAnswer(UsageError):
    """A reference that would answer otherwise if it were asked again."""


# Relative L2 difference in float64: far above what another order of summation makes.
_SAME = 1e-9


@contextlib.contextmanager
def drawing_nothing(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Around a call of the reference; raises NoOneAnswer where it changes a random state."""
    before = random_states(device)
    yield
    if changed(before, random_states(device)):
        raise _unfit(model, "draws random numbers (dropout, noise)")


def require_the_same_again(model: nn.Module, inputs: list, first: torch.Tensor) -> None:
    """Call the reference, in float64, on the inputs of its first answer once more, with the buffers
    that it has by now; raises NoOneAnswer where they make another answer.
    """
    with torch.no_grad():
        again = model(*inputs)
    size = float(first.norm())
    if float((again - first).norm()) > _SAME * size:
        what = "has another answer at each call on the same input (by buffers that it updates)"
        raise _unfit(model, what)


def _unfit(model: nn.Module, what: str) -> NoOneAnswer:
    mode = " in training mode" if model.training else ""
    told = f"the reference {what}{mode}, so that no answer is the right one"
    return NoOneAnswer(f"{told}; --eval has it judged in eval mode" if model.training else told)
