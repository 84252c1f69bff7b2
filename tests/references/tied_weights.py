"""An encoder whose weights the decoder uses transposed."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, channels=3, filters=6):
        super().__init__()
        self.encoder = nn.Conv2d(channels, filters, 3, stride=2, padding=1)
        self.bias = nn.Parameter(torch.randn(channels))

    def forward(self, x):
        code = F.relu(self.encoder(x))
        return F.conv_transpose2d(code, self.encoder.weight, self.bias, 2, 1, 1)


def get_inputs():
    return [torch.randn(2, 3, 8, 6)]


def get_init_inputs():
    return []
