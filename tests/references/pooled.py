"""Pattern 3 with ReLU and every option of its modules open."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, channels=8, groups=4, pool=None, norm=None, conv=None, affine=True):
        super().__init__()
        self.deconv = nn.ConvTranspose2d(4, channels, **(conv or {"kernel_size": 3}))
        self.bn = nn.BatchNorm2d(channels, **(norm or {}))
        self.pool = nn.MaxPool2d(**(pool or {"kernel_size": 2}))
        self.gn = nn.GroupNorm(groups, channels, affine=affine)

    def forward(self, x):
        return self.gn(self.pool(torch.relu(self.bn(self.deconv(x)))))


def get_inputs():
    return [torch.rand(4, 4, 7, 6)]


def get_init_inputs():
    return []
