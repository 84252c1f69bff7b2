"""A transposed convolution of three dimensions alone, in groups."""

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

    def forward(self, x):
        return F.max_pool3d(F.leaky_relu(self.norm(self.up(x)), 0.2), 2)


def get_inputs():
    return [torch.randn(2, 4, 3, 4, 4)]


def get_init_inputs():
    return []
