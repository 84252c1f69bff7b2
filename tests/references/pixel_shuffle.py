"""A transposed convolution, pixel shuffle, interpolation, padding, slices."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, channels=4):
        super().__init__()
        self.up = nn.ConvTranspose2d(channels, 8, 3, stride=2, padding=1)
        self.shuffle = nn.PixelShuffle(2)

    def forward(self, x):
        y = self.shuffle(F.softplus(self.up(x)))
        y = F.interpolate(y, scale_factor=2, mode="bilinear", align_corners=False)
        y = F.pad(y, (1, 2, 0, 1), mode="reflect")
        left, right = y.chunk(2, dim=1)
        return left[..., 1:] * torch.softmax(right[..., :-1], dim=-1)


def get_inputs():
    return [torch.randn(2, 4, 4, 5)]


def get_init_inputs():
    return []
