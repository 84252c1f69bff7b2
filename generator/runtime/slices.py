"""Transposed convolutions of three dimensions as some of two: which slices belong together."""

import torch


def _residues(depth, slices, taps: int, stride: int, padding: int, output_padding, dilation):
    """For each residue of output slices modulo the stride: how many it has, and its (tap, base),
    the last tap first. Through a tap output slice residue + stride * j reads input slice j + base,
    base = (residue + padding - dilation * tap) / stride where that is whole.
    """
    found = []
    for residue in range(stride):
        count = -(-(slices - residue) // stride)
        shifted = [(tap, residue + padding - dilation * tap) for tap in reversed(range(taps))]
        pairs = [(tap, s // stride) for tap, s in shifted if s % stride == 0]
        reached = [(tap, base) for tap, base in pairs if -count < base and base < depth]
        found.append((count, reached))
    return [entry for entry in found if entry[0] > 0]


def _stacked_input(x, groups: int, count: int, bases) -> torch.Tensor:
    """Images [batch * count, channels for each tap, height, width] of x [batch, channels, depth,
    height, width]: in a group the slices that the taps read, tap after tap, zeros beyond x.
    """
    batch, channels, size, *image = x.shape
    step = bases[1] - bases[0] if len(bases) > 1 else 1
    first, end = bases[0], bases[-1] + count
    window = x
    if first != 0 or end != size:
        window = torch.constant_pad_nd(x, (0, 0, 0, 0, -first, end - size))
    stacked = window.unfold(2, count, step).unflatten(1, (groups, -1))
    # batch, group, channel, tap, height, width, slice
    stacked = stacked.permute(0, 6, 1, 3, 2, 4, 5)
    return stacked.reshape(batch * count, len(bases) * channels, *image)


def _stacked_weight(weight, groups: int, taps) -> torch.Tensor:
    """The weight of two dimensions for such images; taps: in depth, the last first."""
    spacing = taps[0] - taps[1] if len(taps) > 1 else 1
    kernel = weight[:, :, taps[-1] : taps[0] + 1 : spacing].flip(2).unflatten(0, (groups, -1))
    # group, channel, out_channel of the group, tap, height taps, width taps
    return kernel.permute(0, 3, 1, 2, 4, 5).reshape(-1, weight.shape[1], *weight.shape[3:])
