"""A transposed convolution with every argument, whose solution shapes of three dimensions are
measured with. Its default layer asks for what a file may have for groups, for many channels, and
for few output channels of stride one in rows; it has no joined columns, for which strides would
have to differ.
"""

import torch
from torch import nn

batch_size = 2


class Model(nn.Module):
    """[batch, in_channels, depth, height, width] to [batch, out_channels, ...]."""

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
        self.up = nn.ConvTranspose3d(
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
    return [torch.randn(batch_size, 512, 4, 9, 12)]


def get_init_inputs():
    return [512, 64, 3, (2, 1, 1), 1, 0, 1, 2]
