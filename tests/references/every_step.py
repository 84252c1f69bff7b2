"""Every element-wise form, other names, nested modules, numbers on both sides, values reused."""

import torch
import torch.nn.functional as F
from torch import nn


def double(value):
    return (value, value)


class Model(nn.Module):
    def __init__(self, width, kernel=3):
        super(Model, self).__init__()  # noqa: UP008 - an older spelling that must be understood
        self.stage = nn.Sequential(
            torch.nn.ConvTranspose2d(5, width, double(kernel), stride=2, padding=1, bias=True),
            nn.Hardtanh(-3.0, 3.0),
        )
        self.shift = nn.Parameter(torch.randn(width, 1, 1))
        self.gain = nn.Parameter(torch.randn(1, width, 1, 1))
        self.temperature = nn.Parameter(torch.rand(1) + 1)
        self.scale = 2.0
        self.reset()

    def reset(self):
        nn.init.uniform_(self.gain, 0.5, 1.5)

    def squash(self, y):
        return F.gelu(y, approximate="tanh")

    def forward(self, features):
        y = self.stage(features)
        y = y + self.shift
        y = self.squash(y)
        y = y * self.gain
        y = 1.5 - y
        y = torch.clamp(y, min=-2.0, max=1.9)
        y = y / self.temperature
        y *= self.scale
        y = torch.tanh(y).sub(0.25)
        y = y * torch.sigmoid(y) - y / 4
        y = y.clamp(max=0.7)
        y = -y
        y = y.sigmoid() / 3
        return torch.relu(y.add_(-0.1)) - self.shift


def get_inputs():
    return [torch.rand(2, 5, 6, 7)]


def get_init_inputs():
    return [8]
