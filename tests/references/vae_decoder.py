"""The decoder of a VAE: a linear layer, a view, transposed convolutions, sigmoid."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, latent=5, width=8):
        super().__init__()
        self.width = width
        self.fc = nn.Linear(latent, width * 2 * 16)
        self.up1 = nn.ConvTranspose2d(width * 2, width, 4, stride=2, padding=1)
        self.up2 = nn.ConvTranspose2d(width, 1, 4, stride=2, padding=1)

    def forward(self, z):
        x = self.fc(z)
        x = x.view(x.size(0), self.width * 2, 4, 4)
        x = F.relu(self.up1(x))
        return torch.sigmoid(self.up2(x))


def get_inputs():
    return [torch.randn(3, 5)]


def get_init_inputs():
    return []
