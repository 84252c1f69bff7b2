"""Decoders' steps of stride two, an image's and a volume's: joined to a skip, then an activation of
the sum, as KernelBench's 2/26 has it.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Step(nn.Module):
    def __init__(self, up):
        super().__init__()
        self.up = up

    def forward(self, x, skip):
        x = self.up(x) + skip
        return x * F.hardswish(x)


class Model(nn.Module):
    def __init__(self, channels=16, out_channels=16):
        super().__init__()
        self.image = Step(nn.ConvTranspose2d(channels, out_channels, 2, stride=2))
        self.volume = Step(
            nn.ConvTranspose3d(channels, out_channels, 3, stride=2, padding=1, output_padding=1)
        )

    def forward(self, image, image_skip, volume, volume_skip):
        return self.image(image, image_skip), self.volume(volume, volume_skip)


def get_inputs():
    image, volume = torch.randn(2, 16, 5, 6), torch.randn(1, 16, 2, 3, 5)
    return [image, torch.randn(2, 16, 10, 12), volume, torch.randn(1, 16, 4, 6, 10)]


def get_init_inputs():
    return []
