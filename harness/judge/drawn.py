"""Weights of the reference: its state_dict as it is copied, or as its constructor draws it."""

import torch

from harness.judge.reference import Reference


class Drawn(dict):
    """A state_dict that stands for the seed which the reference's constructor draws it from: a
    solution that keeps its weights in other shapes is constructed from the same.
    """

    def __init__(self, state: dict, seed: int):
        super().__init__(state)
        self.seed = seed


def drawn(reference: Reference, seed: int, dtype: torch.dtype) -> Drawn:
    """The reference's weights under this seed, in `dtype`."""
    return Drawn(cast_state(reference.model(seed), dtype), seed)


def cast_state(model: torch.nn.Module, dtype: torch.dtype) -> dict:
    """The model's state_dict as it is after .to(dtype), detached."""
    return {
        name: (value.to(dtype) if value.is_floating_point() else value).detach().clone()
        for name, value in model.state_dict().items()
    }
