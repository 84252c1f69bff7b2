"""A stretch of forward under autocast, whatever is around it."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, channels=4):
        super().__init__()
        self.up = nn.ConvTranspose2d(channels, 4, 3, stride=2)
        self.out = nn.ConvTranspose2d(4, 2, 3)

    def forward(self, x):
        with torch.autocast(x.device.type, enabled=False):
            y = self.up(x).square()
        return self.out(y).exp()


def get_inputs():
    return [torch.randn(2, 4, 5, 5) * 0.1]


def get_init_inputs():
    return []
