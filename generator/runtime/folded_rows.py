"""A long row of one dimension as an image of shorter ones, for the CPU's kernel, which holds whole
rows of some channels in its cache.
"""

import torch

from generator.runtime.arguments import _output_size
from generator.runtime.dispatch import _as_operator, _transformed

_SHORT_ROW = 1024  # inputs, at least
_REACHES = 8  # and so many times those that neighbouring rows share
_LEAST_ROWS = 4


def _folding(operator):
    """`operator` of two dimensions, which takes images of one long row so on a CPU. Right for what
    it computes pixel by pixel behind the convolution, not for norms and pools.
    """

    def run(x, weight, bias, stride, padding, output_padding, dilation, *rest):
        numbers = stride[1], padding[1], output_padding[1], dilation[1]
        folded = None
        if x.device.type == "cpu" and not _as_operator() and not _transformed():
            folded = _folded(x.select(-2, 0), weight.shape[-1], *numbers)
        if folded is None:
            return operator(x, weight, bias, stride, padding, output_padding, dilation, *rest)
        rows, padding, output_padding, length = folded
        out = operator(
            rows, weight, bias, stride, (0, padding), (0, output_padding), dilation, *rest
        )
        return out.flatten(-2)[..., :length].contiguous().unsqueeze(-2)

    return run


def _folded(x, taps: int, stride: int, padding: int, output_padding: int, dilation: int):
    """(x [..., length] as overlapping rows [..., rows, inputs], the padding and output padding by
    which each of them has its part of the output, all parts one after another, and their length);
    None where there is too little to fold, or a parameter is not allowed.
    """
    if stride < 1 or dilation < 1 or padding < 0:
        return None
    if not 0 <= output_padding < max(stride, dilation):
        return None
    length = _output_size(x.shape[-1], taps, stride, padding, output_padding, dilation)
    reach = (taps - 1) * dilation
    step = max(_SHORT_ROW, _REACHES * reach // stride)  # inputs from one row to the next
    rows = length // (step * stride)
    if rows < _LEAST_ROWS:
        return None
    # Rows up to twice as long, if they then cover the output exactly and need not be cut.
    even = range(rows // 2 + 1, rows + 1)
    exact = [count for count in even if length % (count * stride) == 0]
    if exact:
        step = length // (exact[-1] * stride)
    rows = -(-length // (step * stride))
    # Output o reads inputs (o + padding - dilation * tap) / stride.
    first = (padding - reach) // stride
    inputs = step + (padding - 1) // stride - first + 1
    padding -= first * stride
    missing = step * stride - ((inputs - 1) * stride - 2 * padding + reach + 1)
    while missing >= max(stride, dilation):  # more than may be asked for: an input more, unread
        inputs, missing = inputs + 1, missing - stride
    end = (rows - 1) * step + first + inputs
    padded = torch.constant_pad_nd(x, (-first, end - x.shape[-1]))
    return padded.unfold(-1, inputs, step), padding, missing, length
