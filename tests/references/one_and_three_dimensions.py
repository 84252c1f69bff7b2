"""Transposed convolutions of one, two and three dimensions."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.ConvTranspose1d(3, 4, 3, stride=2)
        self.plane = nn.ConvTranspose2d(1, 2, 3)
        self.space = nn.ConvTranspose3d(2, 2, 2)

    def forward(self, x):
        y = F.relu(self.line(x)).unsqueeze(1)
        y = self.plane(y).abs()
        return self.space(y.unsqueeze(2)).log1p()


def get_inputs():
    return [torch.randn(2, 3, 5)]


def get_init_inputs():
    return []
