"""A decoder's step in three dimensions, as KernelBench's 2/26 has it: joined to a skip, then an
activation of the sum.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, channels=16, out_channels=64):
        super().__init__()
        self.up = nn.ConvTranspose3d(
            channels, out_channels, 3, stride=2, padding=1, output_padding=1
        )

    def forward(self, x, skip):
        x = self.up(x) + skip
        return x * F.hardswish(x)


def get_inputs():
    return [torch.randn(2, 16, 2, 3, 5), torch.randn(2, 64, 4, 6, 10)]


def get_init_inputs():
    return []
