"""Every element-wise operator in one chain, as module, function or method; each within its domain,
at values of order one.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.ConvTranspose2d(4, width, 3, stride=2, padding=1)
        self.mish = nn.Mish()
        self.silu = nn.SiLU()
        self.leaky = nn.LeakyReLU(0.125)
        self.elu = nn.ELU(0.75)
        self.celu = nn.CELU(1.5)
        self.selu = nn.SELU(inplace=True)
        self.softplus = nn.Softplus(beta=1.5, threshold=12)
        self.softsign = nn.Softsign()
        self.hardswish = nn.Hardswish()
        self.hardsigmoid = nn.Hardsigmoid()
        self.cut = nn.Threshold(-0.9, -0.9)
        self.floor = nn.Parameter(torch.rand(width, 1, 1) - 0.5)
        self.scale = nn.Parameter(torch.rand(1, width, 1, 1) + 1)
        self.register_buffer("ceiling", torch.tensor(1.25))

    def forward(self, x):
        y = 2 * self.up(x)
        y = self.leaky(self.mish(y) - 0.125)
        y = self.celu(self.elu(y)) * self.scale
        y = F.selu(F.gelu(y)).sub_(0.25)
        y = torch.maximum(y, self.floor)
        y = torch.min(self.ceiling, y)
        y = self.silu(self.hardswish(2.5 * y + 0.5))
        y = self.softsign(y).abs() + 0.5
        y = torch.sqrt(y).log() + 1.25
        y = torch.exp(-y).square().reciprocal() ** 0.375
        y = 2 / torch.rsqrt(y)
        y = self.softplus(self.cut(y - self.scale))
        y = F.hardtanh(self.selu(y - 0.5), -1.75, 1.5).clamp(min=-1.7)
        y = F.relu6(F.gelu(3 * y, approximate="tanh") + 0.5) / 4
        y = self.hardsigmoid(torch.tanh(y) * 3) ** 3
        return F.relu(torch.sigmoid(y).neg() + 0.75)


def get_inputs():
    return [torch.rand(2, 4, 6, 7)]


def get_init_inputs():
    return [8]
