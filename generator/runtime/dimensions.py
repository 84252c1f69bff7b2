"""Transposed convolutions of one and of three dimensions, computed by the operator of two."""

import torch

from generator.runtime.arguments import _output_size
from generator.runtime.slices import _residues, _stacked_input, _stacked_weight
from generator.runtime.volumes import _whole_volumes

_FEW_CHANNELS = 8  # of a group: kFewGroupChannels in kernels_src/cuda/conv_transpose_dispatch.cuh


def _as_tuple(function: str, name: str, values, count: int) -> tuple:
    """An int for every axis, or one for each. Raises RuntimeError, as PyTorch does, for others."""
    if isinstance(values, int):
        return (values,) * count
    if len(values) != count:
        raise RuntimeError(
            f"{function}: {name} must be an int or a tuple of {count}, got {len(values)} values: "
            f"{tuple(values)}"
        )
    return tuple(values)


def _axes(function: str, x, weight, numbers: tuple, count: int) -> list:
    """The four parameters as tuples. Raises RuntimeError for operands that do not fit."""
    if x.dim() not in (count + 1, count + 2) or weight.dim() != count + 2:
        raise RuntimeError(
            f"{function}: expected an input of {count + 1} (unbatched) or {count + 2} dimensions "
            f"and a weight of {count + 2}, got {tuple(x.shape)} and {tuple(weight.shape)}"
        )
    if x.shape[-1 - count] != weight.shape[0]:
        raise RuntimeError(
            f"{function}: input must have {weight.shape[0]} channels, the first dimension of "
            f"weight, got an input of shape {tuple(x.shape)}"
        )
    names = ("stride", "padding", "output_padding", "dilation")
    pairs = zip(names, numbers, strict=True)
    return [_as_tuple(function, name, values, count) for name, values in pairs]


def _in_one_dimension(operator, x, weight, bias, stride, padding, output_padding, dilation, *rest):
    """operator's result for x [batch,] channels, length and weight [channels, out_channels /
    groups, taps]: an image of one row. `rest`: groups and what else the operator takes.
    """
    numbers = (stride, padding, output_padding, dilation)
    (s,), (p,), (op,), (d,) = _axes("conv_transpose1d", x, weight, numbers, 1)
    rows = x.unsqueeze(-2), weight.unsqueeze(-2)
    return operator(*rows, bias, (1, s), (0, p), (0, op), (1, d), *rest).squeeze(-2)


def _in_three_dimensions(
    operator, call, chain, x, weight, bias, stride, padding, output_padding, dilation, groups, *rest
):
    """operator's result for x [batch,] channels, depth, height, width and weight [channels,
    out_channels / groups, depth taps, height taps, width taps]. `call` tells the operator's name
    from others in the same text; chain: (the steps after the convolution, their number in the
    library of their gradients).

    Output slices with the same residue modulo the stride in depth read through the same depth taps,
    each from an input slice of its own: those slices stand behind one another as channels of an
    image, so the products of all taps are one sum. Slices beyond the input are zeros there. Where
    _whole_volumes can, the kernel reads and writes them where they are.
    """
    numbers = (stride, padding, output_padding, dilation)
    axes = _axes("conv_transpose3d", x, weight, numbers, 3)
    if groups < 1 or weight.shape[0] % groups:
        raise RuntimeError(
            f"conv_transpose3d: groups must divide the {weight.shape[0]} input channels, got "
            f"{groups}"
        )
    unbatched = x.dim() == 4
    batched = x.unsqueeze(0) if unbatched else x

    def by_slices(*arguments):
        return _by_slices(operator, chain, *arguments)

    arguments = batched, weight, bias, axes, groups, rest
    out = _whole_volumes(by_slices, call, chain, *arguments)
    if out is None:
        out = by_slices(*arguments)
    if unbatched:
        return out.squeeze(0)
    if _is_channels_last_3d(x) or _is_channels_last_3d(weight):
        return out.contiguous(memory_format=torch.channels_last_3d)
    return out


def _by_slices(operator, chain, x, weight, bias, axes, groups: int, rest) -> torch.Tensor:
    """By calls of the operator of two dimensions, one for each residue, over copies of x."""
    few = groups > 1 and x.shape[1] // groups <= _FEW_CHANNELS
    if few and not chain[0] and x.dtype is torch.float32 and x.device.type != "cpu":
        operator = _tap_by_tap(operator, x.shape[1])
    depth, planes = tuple(values[0] for values in axes), [values[1:] for values in axes]
    slices = _depth(x.shape[2], weight.shape[2], *depth)
    found = [
        _residue(operator, x, weight, bias, planes, groups, rest, residue)
        for residue in _residues(x.shape[2], slices, weight.shape[2], *depth)
    ]
    return _interleaved(found, slices, depth[0])


def _tap_by_tap(operator, channels: int):
    """The operator, tap after tap in depth: the rule that answers groups of few channels in fp32,
    as PyTorch does, is not to count the channels of all taps.
    """

    def run(stacked, kernel, bias, stride, padding, output_padding, dilation, groups):
        numbers = stride, padding, output_padding, dilation, groups
        taps = stacked.shape[1] // channels
        images = stacked.unflatten(1, (groups, taps, -1)).unbind(2)
        weights = kernel.unflatten(0, (groups, taps, -1)).unbind(1)
        parts = [
            operator(image.flatten(1, 2), weight.flatten(0, 1), None if nth else bias, *numbers)
            for nth, (image, weight) in enumerate(zip(images, weights, strict=True))
        ]
        return sum(parts[1:], parts[0])

    return run


def _is_channels_last_3d(tensor) -> bool:
    is_plain = tensor.is_contiguous()
    return not is_plain and tensor.is_contiguous(memory_format=torch.channels_last_3d)


def _depth(depth, taps: int, stride: int, padding: int, output_padding: int, dilation: int):
    """Slices of the output. Raises RuntimeError where PyTorch does."""
    found = _output_size(depth, taps, stride, padding, output_padding, dilation)
    if stride < 1 or dilation < 1 or padding < 0 or output_padding < 0:
        raise RuntimeError(
            "conv_transpose3d: stride and dilation must be positive, padding and output_padding "
            f"not negative, got {stride}, {dilation}, {padding} and {output_padding} in depth"
        )
    if output_padding >= max(stride, dilation):
        raise RuntimeError(
            "conv_transpose3d: output_padding must be smaller than stride or dilation, got "
            f"{output_padding}, {stride} and {dilation} in depth"
        )
    if found < 1:
        raise RuntimeError(f"conv_transpose3d: the output would have a depth of {found}")
    return found


def _residue(operator, x, weight, bias, planes, groups, rest, residue) -> torch.Tensor:
    """The slices [batch, slices of this residue, out_channels, height, width]."""
    count, reached = residue
    batch = x.shape[0]
    if not reached:  # no tap: all such slices are the same, and gradients are zeros
        slices = _zero_slice(x[:1]), _zero_slice(weight)
        out = operator(*slices, bias, *planes, groups, *rest)
        return out.expand(batch * count, *out.shape[1:]).unflatten(0, (batch, count))
    taps, bases = zip(*reached, strict=True)
    stacked = _stacked_input(x, groups, count, bases)
    kernel = _stacked_weight(weight, groups, taps)
    out = operator(stacked, kernel, bias, *planes, groups, *rest)
    return out.unflatten(0, (batch, count))


def _zero_slice(tensor) -> torch.Tensor:
    """One slice in depth, of zeros that no value of `tensor` reaches but its graph does."""
    return torch.constant_pad_nd(tensor[:, :, :0], (0, 0, 0, 0, 0, 1))[:, :, 0]


def _interleaved(found: list, slices, stride: int) -> torch.Tensor:
    """[batch, channels, slices, height, width] of the slices of every residue."""
    if len(found) == 1:
        return found[0].transpose(1, 2).contiguous()
    batch, _, channels, *image = found[0].shape
    out = found[0].new_empty(batch, channels, slices, *image)
    for residue, part in enumerate(found):
        out[:, :, residue::stride] = part.transpose(1, 2)
    return out
