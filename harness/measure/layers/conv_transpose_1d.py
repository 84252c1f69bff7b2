"""A transposed convolution with every argument, whose solution shapes of one dimension are
measured with. Its default layer asks for every kernel that a file may have: columns over two apart.
"""

import torch
from torch import nn

batch_size = 2


class Model(nn.Module):
    """[batch, in_channels, length] to [batch, out_channels, ...]."""

    def __init__(
        self,
        in_channels,
        out_channels,
        kernel_size,
        stride=1,
        padding=0,
        output_padding=0,
        dilation=1,
        groups=1,
        bias=False,
    ):
        super().__init__()
        self.up = nn.ConvTranspose1d(
            in_channels,
            out_channels,
            kernel_size,
            stride=stride,
            padding=padding,
            output_padding=output_padding,
            groups=groups,
            bias=bias,
            dilation=dilation,
        )

    def forward(self, x):
        return self.up(x)


def get_inputs():
    return [torch.randn(batch_size, 16, 65)]


def get_init_inputs():
    return [16, 32, 6, 3]
