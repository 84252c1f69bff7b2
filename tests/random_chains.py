"""References whose chains are drawn from every spelling of every element-wise operator."""

import random
import re

SPELLINGS = """
y + 0.37 | 1.5 + y | y + self.a | self.b + y | y - 0.25 | 2 - y | y - self.a | self.a - y
y * 0.75 | -2 * y | y * self.a | self.b * y | y / 3 | y / self.a | self.a / y | 2 / y
torch.minimum(y, self.a) | torch.max(self.b, y) | -y | y.neg() | y.abs() | abs(y) | y ** 2
torch.square(y) | y.abs().sqrt() | torch.rsqrt(y) | y.reciprocal() | torch.exp(-y) | y.exp()
torch.log(y.abs()) | y.pow(3) | torch.pow(y.abs(), 1.5) | y ** -1 | y.abs() ** 0.5
y.clamp(-0.5, 1.25) | y.clamp(min=0.1) | torch.clip(y, max=1) | y.clamp_min(-0.3)
torch.clamp_max(y, 0.8) | F.relu(y) | y.relu() | F.relu6(4 * y) | F.hardtanh(y, -0.75, 0.6)
F.threshold(y, 0.2, -0.1) | F.leaky_relu(y, 0.2) | F.leaky_relu(y) | F.elu(y, 0.7) | F.selu(y)
torch.selu(y) | F.celu(y, alpha=1.5) | F.silu(y) | F.mish(y) | F.hardswish(y)
F.hardsigmoid(y) | F.softplus(y) | F.softplus(y, 2, 5) | F.softsign(y) | torch.sigmoid(y)
y.sigmoid() | torch.tanh(y) | F.gelu(y) | F.gelu(y, approximate='tanh') | self.act(y)
y * torch.sigmoid(y) | y * torch.tanh(F.softplus(y)) | y * y | y + F.relu(y) | self.act(y) - y
y.detach() * y + 0.5 * y.clone() | self.a * y + (y - 1).tanh() | 2 * y - self.b / (1 + y.exp())
(y - y.detach().mul(0.5)) * (0.5 + y.sigmoid()) | torch.maximum(y.tanh(), 0.25 * y)
"""
LINES = [line.strip() for line in SPELLINGS.strip().replace("\n", " | ").split("|")]
MODULES = """
nn.ReLU() nn.ReLU6() nn.LeakyReLU(0.3) nn.ELU(1.25) nn.SELU() nn.CELU(0.75) nn.SiLU() nn.Mish()
nn.Hardswish() nn.Hardsigmoid() nn.Hardtanh(-2,1) nn.Softplus(0.5,9) nn.Softsign() nn.Sigmoid()
nn.Tanh() nn.GELU() nn.GELU('tanh') nn.Threshold(0.1,0.0)
""".split()
REFERENCE = """
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1)
        self.a = nn.Parameter(torch.rand(6, 1, 1) + 0.5)
        self.b = nn.Parameter(torch.rand(6, 1, 1) - 1.25)
        self.act = {module}

    def forward(self, x):
        y = 3 * self.conv(x)
        {body}
        return y


def get_inputs():
    return [torch.rand(2, 4, 5, 5)]


def get_init_inputs():
    return []
"""


def random_reference(seed: int, length: int | None = None) -> str:
    """A reference whose chain has 1 to 6 random operators, the same for a seed everywhere. At most
    four of them read an operand, as many as there is room for.
    """
    draw = random.Random(seed)
    lines: list[str] = []
    for _ in range(length or draw.randint(1, 6)):
        full = sum("self." in line and "act" not in line for line in lines) == 4
        lines.append(draw.choice([line for line in LINES if not (full and "self." in line)]))
    body = "\n        ".join(f"y = {line}" for line in lines)
    return REFERENCE.format(body=body, module=draw.choice(MODULES))


def with_tensors(text: str, seed: int) -> str:
    """The reference of random_reference(seed), in which half of the operands a channel, and at
    least one, are tensors of the output's shape: an input, its tanh, or what another call makes.
    """
    draw = random.Random(f"tensors {seed}")
    head, forward = text.split("def forward(self, x):")
    parts = re.split(r"(self\.[ab]\b)", forward)
    places = list(range(1, len(parts), 2))
    if not places:
        parts[-1] = parts[-1].replace(
            "        return y", "        y = y + self.a\n        return y"
        )
        return with_tensors(f"{head}def forward(self, x):{''.join(parts)}", seed)
    for place in draw.sample(places, (len(places) + 1) // 2):
        parts[place] = draw.choice(["s", "s.tanh()", "self.conv(x)"])
    body = "".join(parts).replace("rand(2, 4, 5, 5)]", "rand(2, 4, 5, 5), torch.rand(2, 6, 9, 9)]")
    return f"{head}def forward(self, x, s):{body}"
