"""A chain whose gradient asks one thing of the convolution's output, as that of 2/100 does."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, channels=16, out_channels=64, stride=2, min_value=-1.0, divisor=2.0):
        super().__init__()
        self.up = nn.ConvTranspose3d(channels, out_channels, 3, stride=stride, padding=1)
        self.min_value = min_value
        self.divisor = divisor

    def forward(self, x):
        return torch.clamp(self.up(x), min=self.min_value) / self.divisor


def get_inputs():
    return [torch.randn(2, 16, 2, 3, 9)]


def get_init_inputs():
    return []
