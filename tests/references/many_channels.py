"""Many channels over few pixels, as the first layers of a decoder have them, and behind them an
ordinary convolution, BatchNorm and softmax over rows.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(
        self, channels=256, out_channels=40, kernel=4, stride=2, padding=1, dilation=1, groups=1
    ):
        super().__init__()
        self.conv = nn.ConvTranspose2d(
            channels,
            out_channels,
            kernel,
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
        )
        self.smooth = nn.Conv2d(out_channels, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.soft = nn.Softmax(dim=-1)

    def forward(self, x):
        return self.soft(self.norm(self.smooth(self.conv(x))))


def get_inputs():
    return [torch.randn(3, 256, 4, 5)]


def get_init_inputs():
    return []
