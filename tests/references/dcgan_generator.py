"""A DCGAN generator: transposed convolutions, BatchNorm, ReLU, tanh at the end."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, latent=8, width=4):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(latent, width * 4, 4, 1, 0, bias=False),
            nn.BatchNorm2d(width * 4),
            nn.ReLU(True),
            nn.ConvTranspose2d(width * 4, width * 2, 4, 2, 1, bias=False),
            nn.BatchNorm2d(width * 2),
            nn.ReLU(True),
            nn.ConvTranspose2d(width * 2, 3, 4, 2, 1, bias=False),
            nn.Tanh(),
        )
        self.apply(self.start)

    @staticmethod
    def start(module):
        if isinstance(module, nn.ConvTranspose2d):
            nn.init.normal_(module.weight, 0.0, 0.02)

    def forward(self, z):
        return self.main(z)


def get_inputs():
    return [torch.randn(2, 8, 1, 1)]


def get_init_inputs():
    return []
