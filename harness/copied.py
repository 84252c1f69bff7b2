"""Copies of models."""

import copy

import torch
from torch import nn


def copied(model: nn.Module) -> nn.Module:
    """copy.deepcopy, also of a model that keeps tensors with a history, which that refuses:
    torch.nn.utils.weight_norm leaves the weight of its last call in the layer. They lose it.
    """
    kept = [value for module in model.modules() for value in vars(module).values()]
    with_history = [v for v in kept if isinstance(v, torch.Tensor) and not v.is_leaf]
    return copy.deepcopy(model, {id(v): v.detach().clone() for v in with_history})
