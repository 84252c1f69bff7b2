"""Norms that no kernel takes and one that a kernel does, in one file."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, channels=4):
        super().__init__()
        self.first = nn.ConvTranspose2d(channels, 8, 3)
        self.instance = nn.InstanceNorm2d(8, affine=True, track_running_stats=True)
        self.second = nn.ConvTranspose2d(8, 8, 3)
        self.group = nn.GroupNorm(4, 8)
        self.third = nn.ConvTranspose2d(8, 4, 3)
        self.batch = nn.BatchNorm2d(4, momentum=None)
        self.layer = nn.LayerNorm(4)

    def forward(self, x):
        x = F.relu(self.instance(self.first(x)))
        x = F.hardswish(self.group(F.gelu(self.second(x))))
        x = self.batch(self.third(x))
        return self.layer(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def get_inputs():
    return [torch.randn(2, 4, 5, 5)]


def get_init_inputs():
    return []
