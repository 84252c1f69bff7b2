"""A small U-Net with skip connections and two up-convolutions."""

import torch
import torch.nn as nn


def double(channels, filters):
    return nn.Sequential(
        nn.Conv2d(channels, filters, 3, padding=1),
        nn.BatchNorm2d(filters),
        nn.ReLU(inplace=True),
        nn.Conv2d(filters, filters, 3, padding=1),
        nn.ReLU(inplace=True),
    )


class Model(nn.Module):
    def __init__(self, channels=3, width=4, classes=2):
        super().__init__()
        self.down = nn.ModuleList([double(channels, width), double(width, 2 * width)])
        self.middle = double(2 * width, 4 * width)
        self.ups = nn.ModuleList(
            [nn.ConvTranspose2d(c, c // 2, 2, stride=2) for c in (4 * width, 2 * width)]
        )
        self.up_blocks = nn.ModuleList([double(4 * width, 2 * width), double(2 * width, width)])
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        skips = []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = self.pool(x)
        x = self.middle(x)
        for up, block, skip in zip(self.ups, self.up_blocks, reversed(skips), strict=True):
            x = block(torch.cat([skip, up(x)], dim=1))
        return self.head(x)


def get_inputs():
    return [torch.randn(2, 3, 16, 8)]


def get_init_inputs():
    return []
