"""Volumes of few input channels: layers of several kernels, strides, paddings and dilations, which
are compiled into a kernel of their own, each behind a slice of one input.
"""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, factor=0.5):
        super().__init__()
        self.layers = nn.ModuleList(
            [
                nn.ConvTranspose3d(3, 5, 3, stride=2, padding=1, output_padding=1),
                nn.ConvTranspose3d(1, 9, 3, padding=1, bias=False),
                nn.ConvTranspose3d(2, 4, (2, 3, 4), stride=(1, 2, 2), dilation=(1, 2, 1)),
                nn.ConvTranspose3d(7, 6, 2, stride=2),
                nn.ConvTranspose3d(4, 17, (3, 1, 3), stride=(2, 1, 1), padding=(0, 0, 2)),
                nn.ConvTranspose3d(5, 3, (1, 3, 2), stride=(3, 2, 1), padding=(0, 1, 0)),
            ]
        )
        self.factor = factor

    def forward(self, x):
        found = [layer(x[:, : layer.in_channels]) for layer in self.layers]
        return tuple(torch.tanh(y) * self.factor for y in found)


def get_inputs():
    return [torch.rand(2, 7, 3, 5, 6)]


def get_init_inputs():
    return []
