"""Every kind of kernel call in one file."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, channels=4):
        super().__init__()
        self.plain = nn.ConvTranspose2d(channels, 4, 3)
        self.normed = nn.ConvTranspose2d(4, 4, 3)
        self.group = nn.GroupNorm(2, 4)
        self.pooled = nn.ConvTranspose2d(4, 6, 3)
        self.batch = nn.BatchNorm2d(6)
        self.pool = nn.MaxPool2d(2)
        self.last = nn.GroupNorm(3, 6)
        self.again = nn.ConvTranspose2d(6, 2, 3)

    def forward(self, x):
        x = self.plain(x).mul(0.5)
        x = self.group(torch.tanh(self.normed(x)))
        x = self.last(self.pool(torch.sigmoid(self.batch(self.pooled(x)))))
        return self.again(x) - 1


def get_inputs():
    return [torch.randn(2, 4, 6, 7)]


def get_init_inputs():
    return []
