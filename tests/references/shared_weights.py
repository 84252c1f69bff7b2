"""One layer called twice, its weight used once more by a function."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, channels=4):
        super().__init__()
        self.up = nn.ConvTranspose2d(channels, channels, 3, padding=1)

    def forward(self, x):
        y = self.up(torch.relu(self.up(x)))
        weight = self.up.weight * 0.5
        return F.conv_transpose2d(y, weight, stride=2, output_padding=1).mul(3).sigmoid()


def get_inputs():
    return [torch.randn(2, 4, 6, 5)]


def get_init_inputs():
    return []
