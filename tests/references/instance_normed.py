"""A CycleGAN generator's way up: InstanceNorm with ReLU behind it, with parameters, by itself, and
with running statistics.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, channels=8):
        super().__init__()
        half = channels // 2
        # A bias ahead of InstanceNorm has no gradient but noise.
        up = {"stride": 2, "padding": 1, "output_padding": 1, "bias": False}
        self.up1 = nn.ConvTranspose2d(channels, half, 3, **up)
        self.norm1 = nn.InstanceNorm2d(half)
        self.up2 = nn.ConvTranspose2d(half, half, 3, **up)
        self.norm2 = nn.InstanceNorm2d(half, affine=True, eps=1e-3)
        self.norm3 = nn.InstanceNorm2d(half, track_running_stats=True)
        self.last = nn.ConvTranspose2d(half, 3, 3, padding=1)

    def forward(self, x):
        x = F.relu(self.norm1(self.up1(x)))
        skip = self.norm2(self.up2(x))
        x = F.leaky_relu(self.norm3(skip), 0.2)
        return torch.tanh(self.last(x + skip))


def get_inputs():
    return [torch.rand(2, 8, 6, 5)]


def get_init_inputs():
    return []
