"""Minima and maxima over the channels of transposed convolutions, in both spellings."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, channels: int, out_channels: int):
        super().__init__()
        self.up = nn.ConvTranspose2d(channels, out_channels, 3, stride=2, padding=1)
        self.flat = nn.ConvTranspose2d(channels, out_channels, 3, padding=1)
        self.scale = nn.Parameter(torch.randn(out_channels, 1, 1))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        least = torch.min(self.up(x) * self.scale, dim=1, keepdim=True).values
        most = torch.amax(self.flat(x) * self.scale, -3)
        return torch.tanh(least.sum(2)), most


def get_inputs():
    return [torch.randn(2, 24, 9, 11)]


def get_init_inputs():
    return [24, 40]
