"""A weight-normed layer by parametrization, and a spectrally normed one."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import parametrizations


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = parametrizations.weight_norm(nn.ConvTranspose2d(4, 6, 3, stride=2))
        self.second = parametrizations.spectral_norm(nn.ConvTranspose2d(6, 3, 3))

    def forward(self, x):
        return self.second(F.silu(self.first(x))).clamp(-2, 2)


def get_inputs():
    return [torch.randn(2, 4, 5, 4)]


def get_init_inputs():
    return []
