"""GroupNorm without parameters through the functional form, after a scaled ReLU and a per-channel
operand.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, channels=6, norm_groups=3):
        super().__init__()
        self.up = nn.ConvTranspose2d(4, channels, (2, 3), stride=(2, 1), groups=2, bias=False)
        self.offset = nn.Parameter(torch.randn(channels, 1, 1))
        self.norm_groups = norm_groups

    def forward(self, x):
        x = F.relu(self.up(x) + self.offset) * 0.5
        return F.group_norm(x, self.norm_groups, eps=1e-3)


def get_inputs():
    return [torch.rand(3, 4, 9, 8)]


def get_init_inputs():
    return []
