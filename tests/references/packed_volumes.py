"""Steps with operands a channel behind volumes, whose gradient is formed as it is packed."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, channels=8, out_channels=64, stride=2):
        super().__init__()
        self.up = nn.ConvTranspose3d(channels, out_channels, 3, stride=stride, padding=1)
        self.scale = nn.Parameter(torch.rand(out_channels, 1, 1, 1) + 0.5)
        self.shift = nn.Parameter(torch.rand(out_channels, 1, 1, 1))

    def forward(self, x):
        y = torch.tanh(self.up(x) * self.scale) + self.shift
        return y * 1.5


def get_inputs():
    return [torch.rand(2, 8, 2, 3, 14)]


def get_init_inputs():
    return []
