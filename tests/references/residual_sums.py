"""Residual decoders: sums that reach over layers, results of one call read by another, and what no
kernel behind a sum takes.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = nn.ConvTranspose2d(channels, channels, 3, padding=1)
        self.second = nn.ConvTranspose2d(channels, channels, 3, padding=1, bias=False)

    def forward(self, x):
        return F.relu(self.second(F.relu(self.first(x))) + x)


class Model(nn.Module):
    def __init__(self, channels=6):
        super().__init__()
        self.blocks = nn.Sequential(Block(channels), Block(channels))
        self.wide = nn.ConvTranspose2d(channels, 4, 4, stride=2, padding=1)
        self.short = nn.ConvTranspose2d(channels, 4, 2, stride=2)
        self.norm = nn.GroupNorm(2, 4)

    def forward(self, x, skip):
        y = self.blocks(x)
        y = torch.maximum(self.wide(y), self.short(x).detach()) - skip * 0.5
        return self.norm(y - self.short(x) / (2 + skip.abs()))


def get_inputs():
    return [torch.randn(2, 6, 5, 7), torch.randn(2, 4, 10, 14)]


def get_init_inputs():
    return []
