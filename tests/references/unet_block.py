"""An up block of a U-Net: two inputs, crop of the skip, concatenation."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, channels=8, filters=4):
        super().__init__()
        self.up = nn.ConvTranspose2d(channels, filters, 2, stride=2)
        self.conv = nn.Conv2d(2 * filters, filters, 3, padding=1)
        self.act = nn.LeakyReLU(0.1)

    def forward(self, x, skip):
        x = self.act(self.up(x))
        top = (skip.size(2) - x.size(2)) // 2
        left = (skip.size(3) - x.size(3)) // 2
        skip = skip[:, :, top : top + x.size(2), left : left + x.size(3)]
        return self.conv(torch.cat((x, skip), 1))


def get_inputs():
    return [torch.randn(2, 8, 4, 5), torch.randn(2, 4, 12, 14)]


def get_init_inputs():
    return []
