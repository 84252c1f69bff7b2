"""A reference whose BatchNorms stand behind convolutions of one, two and three dimensions, and what
its solutions are asked to do with them.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from tests.solution_tools import environment, generated, load_text

REFERENCE = """
import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, channels=6, out_channels=8, kernel=3, groups=2, eps=1e-5, **options):
        super().__init__()
        conv = dict(kernel_size=kernel, groups=groups, **options)
        self.row = nn.ConvTranspose1d(channels, out_channels, **conv)
        self.row_norm = nn.BatchNorm1d(out_channels)
        self.image = nn.ConvTranspose2d(channels, out_channels, **conv)
        self.image_norm = nn.BatchNorm2d(out_channels)
        self.act = nn.LeakyReLU(0.1)
        self.volume = nn.ConvTranspose3d(channels, out_channels, **conv)
        self.volume_norm = nn.BatchNorm3d(out_channels)

    def forward(self, x, y, z):
        x = F.leaky_relu(self.row_norm(self.row(x)), 0.1)
        y = self.act(self.image_norm(self.image(y)))
        return x, y, F.leaky_relu(self.volume_norm(self.volume(z)), 0.1)


def get_inputs():
    return [torch.randn(2, 6, *size) for size in ((9,), (5, 7), (3, 4, 5))]


def get_init_inputs():
    return []
"""


def trained(model: nn.Module, seed: int = 0) -> nn.Module:
    """With other statistics and parameters than new ones, which would hide a step that is missing;
    they are numbers of every dtype.
    """
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            given = module.running_mean, module.running_var, module.weight, module.bias
            for tensor, (low, high) in zip(given, ((-3, 3), (0, 2), (-2, 2), (-2, 2)), strict=True):
                if tensor is not None:
                    made = torch.rand(tensor.shape, generator=generator) * (high - low) + low
                    with torch.no_grad():
                        tensor.copy_((made + 1 / 8).bfloat16())
    return model


def inputs(batch: int = 2, channels: int = 6, sizes=((9,), (5, 7), (3, 4, 5)), seed: int = 1):
    """Of those convolutions, in numbers of every dtype."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(batch, channels, *size) for size in sizes]
    return [torch.randn(shape, generator=generator).bfloat16().float() for shape in shapes]


@contextlib.contextmanager
def built_in(folder: Path) -> Iterator[tuple[dict, dict, list[bool]]]:
    """The reference, its solution, whose libraries are built there, and what `watched` gives."""
    path = folder / "folded.py"
    path.write_text(REFERENCE)
    with environment(TORCH_EXTENSIONS_DIR=folder):
        solution = load_text(generated(path))
        yield load_text(REFERENCE), solution, watched(solution)


def watched(solution: dict) -> list[bool]:
    """Whether each call was taken by a fold's kernel, as they come."""
    ran, run = [], solution["_folded_norm"]

    def watching(*given):
        found = run(*given)
        ran.append(found[0])
        return found

    solution["_folded_norm"] = watching
    return ran
