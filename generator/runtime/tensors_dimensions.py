"""What takes the place of dimensions.py's functions where chains have operands of the output's
shape: they come as volumes, of which a call of two dimensions takes its slices.
"""

import torch

from generator.runtime.dimensions import _depth, _interleaved, _zero_slice
from generator.runtime.slices import _residues, _stacked_input, _stacked_weight


def _by_slices(operator, chain, x, weight, bias, axes, groups: int, rest) -> torch.Tensor:
    """By calls of the operator of two dimensions, one for each residue, over copies of x."""
    depth, planes = tuple(values[0] for values in axes), [values[1:] for values in axes]
    slices, stride = _depth(x.shape[2], weight.shape[2], *depth), depth[0]
    found = [
        _residue(
            *(operator, x, weight, bias, planes, groups),
            [_slices_of(operand, nth, stride) for operand in rest],
            residue,
        )
        for nth, residue in enumerate(_residues(x.shape[2], slices, weight.shape[2], *depth))
    ]
    return _interleaved(found, slices, stride)


def _slices_of(operand, residue: int, stride: int) -> torch.Tensor:
    """Of a volume every slice of this residue, as an image; others as they are."""
    if operand.dim() < 5:
        return operand
    return operand[:, :, residue::stride].transpose(1, 2).flatten(0, 1)


def _residue(operator, x, weight, bias, planes, groups, rest, residue) -> torch.Tensor:
    """The slices [batch, slices of this residue, out_channels, height, width]."""
    count, reached = residue
    batch = x.shape[0]
    if reached:
        taps, bases = zip(*reached, strict=True)
        images, kernel = (
            _stacked_input(x, groups, count, bases),
            _stacked_weight(weight, groups, taps),
        )
    else:  # no tap, and gradients are zeros
        images, kernel = _zero_slice(x[:1]), _zero_slice(weight)
        images = images.expand(batch * count, *images.shape[1:])
    out = operator(images, kernel, bias, *planes, groups, *rest)
    return out.unflatten(0, (batch, count))
