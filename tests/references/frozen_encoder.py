"""An encoder under no_grad, detached values, a second input that is optional."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, channels=3):
        super().__init__()
        self.encoder = nn.Conv2d(channels, 6, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(6, channels, 2, stride=2)

    @torch.no_grad()
    def encode(self, x):
        return torch.relu(self.encoder(x))

    def forward(self, x, shift=None, scale=1.5):
        y = self.up(self.encode(x))
        if shift is not None:
            y = y + shift
        return (y + y.detach()) * scale


def get_inputs():
    return [torch.randn(2, 3, 8, 8)]


def get_init_inputs():
    return []
