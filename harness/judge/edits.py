"""Small edits of tensors, in place, which a solution that remembers by less than all values misses.

Harness and worker both make them, so both get the same bits.
"""

import random

import torch


def floating(values: list) -> list[torch.Tensor]:
    """The floating-point tensors among the values."""
    return [value for value in values if torch.is_tensor(value) and value.is_floating_point()]


def random_swap(tensor: torch.Tensor) -> list[int]:
    """[sample, a, b]: two places of one sample chosen at random; none where there are no two."""
    if not tensor.numel():
        return []
    samples, _, places = _view_of(tensor).shape
    if places < 2:
        return []
    source = random.SystemRandom()
    return [source.randrange(samples), *source.sample(range(places), 2)]


def swap_in_place(tensor: torch.Tensor, swap: list[int]) -> None:
    """Swap two places of a contiguous tensor (N, C, ...), all channels of them.

    Every sum over a channel and every sorted list of its values stays what it was.
    """
    if swap:
        sample, *places = swap
        window = _view_of(tensor)[sample]
        window[:, places] = window[:, places[::-1]]


def swapped_weights(state: dict) -> dict:
    """A state in which every parameter of two or more values has two of its rows swapped, chosen at
    random. Buffers that normalisations keep stay as they are.
    """
    source, fresh = random.SystemRandom(), {}
    for name, tensor in state.items():
        fresh[name] = tensor.clone()
        rows = fresh[name]
        while rows.dim() > 1 and rows.shape[0] == 1:
            rows = rows[0]
        kept = not tensor.is_floating_point() or name.rpartition(".")[2].startswith("running_")
        if kept or rows.dim() == 0 or rows.shape[0] < 2:
            continue
        pair = source.sample(range(rows.shape[0]), 2)
        rows[pair] = rows[pair[::-1]]
    return fresh


def _view_of(tensor: torch.Tensor) -> torch.Tensor:
    """As (samples, channels, places), with one channel where there is no dimension behind it."""
    if tensor.dim() > 2 and tensor[0, 0].numel() > 1:
        return tensor.view(*tensor.shape[:2], -1)
    return tensor.view(tensor.shape[0] if tensor.dim() > 1 else 1, 1, -1)
