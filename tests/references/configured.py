"""Structure and numbers that constructor arguments choose."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, act="relu", depth=2, cfg=None):
        super().__init__()
        self.cfg = cfg or {"scale": 0.5, "clip": (-1.0, 1.0)}
        layers = []
        for _ in range(depth):
            layers += [nn.ConvTranspose2d(4, 4, 3), nn.ReLU() if act == "relu" else nn.Tanh()]
        self.layers = nn.Sequential(*layers)
        self.extra = nn.Conv2d(4, 4, 1) if depth > 2 else None

    @property
    def scale(self):
        return self.cfg["scale"] * 2

    def forward(self, x):
        x = self.layers(x)
        if self.extra is not None:
            x = self.extra(x)
        return (x * self.scale).clamp(*self.cfg["clip"])


def get_inputs():
    return [torch.randn(2, 4, 5, 5)]


def get_init_inputs():
    return []
