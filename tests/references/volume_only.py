"""Transposed convolutions of three dimensions: in groups, with columns apart, of many channels."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, channels=4, groups=2, dilation=1):
        super().__init__()
        self.up = nn.ConvTranspose3d(
            channels, 4, 3, stride=(2, 1, 1), padding=1, groups=groups, dilation=dilation
        )
        self.norm = nn.BatchNorm3d(4)
        self.widen = nn.ConvTranspose3d(4, 4, (1, 1, 3), stride=(1, 1, 3))
        self.deepen = nn.ConvTranspose3d(4, 256, 1)

    def forward(self, x):
        x = F.max_pool3d(F.leaky_relu(self.norm(self.up(x)), 0.2), 2)
        return self.deepen(self.widen(x))


def get_inputs():
    return [torch.randn(2, 4, 3, 4, 4)]


def get_init_inputs():
    return []
