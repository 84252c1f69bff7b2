"""Blocks of one, two and three dimensions with one chain, which reads two tensors of the output's
shape and then a scale a channel.
"""

import torch
import torch.nn as nn


class Block(nn.Module):
    def __init__(self, conv):
        super().__init__()
        self.conv = conv
        ones = [1] * (conv.weight.dim() - 2)
        self.scale = nn.Parameter(torch.rand(conv.out_channels, *ones) + 0.5)

    def forward(self, x, skip):
        return torch.tanh(self.conv(x) * x + skip) * self.scale


class Model(nn.Module):
    def __init__(self, channels=6):
        super().__init__()
        self.line = Block(nn.ConvTranspose1d(channels, channels, 5, padding=2, groups=2))
        self.image = Block(nn.ConvTranspose2d(channels, channels, 3, padding=1))
        self.volume = Block(nn.ConvTranspose3d(channels, channels, 3, padding=1))

    def forward(self, line, image, volume):
        y = self.line(line, torch.sin(line))
        return y, self.image(image, image.flip(-1)), self.volume(volume, volume)


def get_inputs():
    return [torch.randn(2, 6, 17), torch.randn(2, 6, 7, 9), torch.randn(2, 6, 3, 4, 5)]


def get_init_inputs():
    return []
