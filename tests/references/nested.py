"""Layers inside modules of the file's own, a list, and what has no effect."""

import torch
import torch.nn as nn


class Up(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.ConvTranspose2d(4, channels, 3, stride=2)
        self.gelu = nn.GELU(approximate="none")
        self.same = nn.Identity()

    def forward(self, x):
        return self.same(self.gelu(self.conv(x)))


class Scale(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * self.factor


class Model(nn.Module):
    def __init__(self, channels=6):
        super().__init__()
        self.up = Up(channels)
        self.steps = nn.ModuleList([nn.ReLU6(), Scale(1.5), nn.Hardtanh(-1.0, 2.0)])
        self.norm = nn.GroupNorm(2, channels)

    def forward(self, x):
        x = self.up(x)
        for step in self.steps:
            x = step(x)
        return self.norm(x)


def get_inputs():
    return [torch.rand(2, 4, 5, 6)]


def get_init_inputs():
    return []
