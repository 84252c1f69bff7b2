"""weight_norm by a hook on one layer, which stays a call of that layer."""

import warnings

import torch
import torch.nn as nn

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.nn.utils import weight_norm


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = weight_norm(nn.ConvTranspose2d(4, 6, 3, stride=2))
        self.second = nn.ConvTranspose2d(6, 3, 3)

    def forward(self, x):
        return self.second(self.first(x)).abs()


def get_inputs():
    return [torch.randn(2, 4, 5, 4)]


def get_init_inputs():
    return []
