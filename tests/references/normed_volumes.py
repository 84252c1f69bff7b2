"""LayerNorm over rows, both pools of volumes and softmax over channels and over positions, which no
kernel of the convolution takes along, with element-wise steps behind each.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, channels=8, width=16, scale=0.5):
        super().__init__()
        self.up = nn.ConvTranspose3d(3, channels, 3, stride=2, padding=1, output_padding=1)
        self.norm = nn.LayerNorm(width, eps=1e-3)
        self.gelu = nn.GELU()
        self.average = nn.AvgPool3d(2)
        self.largest = nn.MaxPool3d((1, 2, 2))
        self.softmax = nn.Softmax(dim=1)
        self.shift = nn.Parameter(torch.randn(channels, 1, 1, 1))
        self.factor = nn.Parameter(torch.randn(channels, 1, 1, 1))
        self.scale = scale

    def forward(self, x):
        y = self.up(x)
        rows = self.gelu(self.norm(y)) * self.scale
        weights = torch.sigmoid(torch.softmax(y, dim=1) + self.shift)
        batch, channels, *sizes = rows.shape
        maps = torch.softmax(rows.view(batch, channels, -1), dim=2)
        weights = weights + maps.view(batch, channels, *sizes) * self.factor
        y = F.silu(self.average(rows * weights) * self.factor)
        return self.softmax(torch.tanh(self.largest(y)))


def get_inputs():
    return [torch.rand(2, 3, 4, 6, 8)]


def get_init_inputs():
    return []
