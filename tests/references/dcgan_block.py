"""One block of a DCGAN generator."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, channels, filters):
        super().__init__()
        self.up = nn.ConvTranspose2d(channels, filters, 4, 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(filters)

    def forward(self, x):
        return F.relu(self.norm(self.up(x)), inplace=True)


class Model(nn.Module):
    def __init__(self, channels=6, filters=4):
        super().__init__()
        self.block = Block(channels, filters)

    def forward(self, x):
        return self.block(x)


def get_inputs():
    return [torch.randn(2, 6, 5, 4)]


def get_init_inputs():
    return []
