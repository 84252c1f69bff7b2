"""One trunk, a ModuleDict of heads, a tuple of results."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, channels=5):
        super().__init__()
        self.trunk = nn.ConvTranspose2d(channels, 8, 3, stride=2)
        self.heads = nn.ModuleDict(
            {"rgb": nn.ConvTranspose2d(8, 3, 2), "alpha": nn.ConvTranspose2d(8, 1, 2)}
        )

    def forward(self, x):
        x = F.gelu(self.trunk(x))
        return self.heads["rgb"](x).tanh(), {name: head(x) for name, head in self.heads.items()}


def get_inputs():
    return [torch.randn(2, 5, 4, 5)]


def get_init_inputs():
    return []
