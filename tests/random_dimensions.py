"""Random transposed convolutions of one and three dimensions, each made anew from its seed."""

import dataclasses
import random

import torch
import torch.nn.functional as F

CONV = {1: F.conv_transpose1d, 3: F.conv_transpose3d}


@dataclasses.dataclass(frozen=True)
class Layer:
    """One layer and an input's shape; `layout` names how the input lies in memory."""

    seed: int
    batch: int | None
    channels: int
    out_channels: int
    size: tuple
    kernel: tuple
    stride: tuple
    padding: tuple
    output_padding: tuple
    dilation: tuple
    groups: int
    bias: bool
    layout: str

    @property
    def dimensions(self) -> int:
        return len(self.size)

    @property
    def parameters(self) -> tuple:
        """As the operator takes them."""
        return self.stride, self.padding, self.output_padding, self.dilation, self.groups

    def operands(self, dtype=torch.float64, device="cpu") -> list:
        """x, weight and bias (None without one), leaves that require gradients."""
        generator = torch.Generator().manual_seed(self.seed)
        batch = () if self.batch is None else (self.batch,)
        shapes = [(*batch, self.channels, *self.size)]
        shapes += [(self.channels, self.out_channels // self.groups, *self.kernel)]
        shapes += [(self.out_channels,)] * self.bias
        made = [torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]
        made = [tensor.to(device, dtype) for tensor in made]
        if self.layout == "channels_last" and self.batch is not None:
            made[0] = made[0].movedim(1, -1).contiguous().movedim(-1, 1)
        made = [tensor.requires_grad_() for tensor in made]
        return made if self.bias else [*made, None]

    def reference(self, x, weight, bias):
        """PyTorch's answer."""
        stride, padding, output_padding, dilation, groups = self.parameters
        conv = CONV[self.dimensions]
        return conv(x, weight, bias, stride, padding, output_padding, groups, dilation)


def layer(dimensions: int, seed: int) -> Layer:
    """Small sizes with every parameter; some have outputs of no size, which PyTorch refuses."""
    rng = random.Random(f"{dimensions} {seed}")

    def axes(low: int, high: int) -> tuple:
        return tuple(rng.randint(low, high) for _ in range(dimensions))

    groups = rng.choice((1, 1, 2, 3))
    stride, dilation = axes(1, 4), axes(1, 3)
    limits = [max(pair) - 1 for pair in zip(stride, dilation, strict=True)]
    return Layer(
        seed=seed,
        batch=rng.choice((None, 0, 1, 2, 3)),
        channels=groups * rng.randint(1, 4),
        out_channels=groups * rng.randint(1, 3),
        size=axes(1, 6),
        kernel=axes(1, 4),
        stride=stride,
        padding=axes(0, 3),
        output_padding=tuple(rng.randint(0, limit) for limit in limits),
        dilation=dilation,
        groups=groups,
        bias=rng.random() < 0.7,
        layout=rng.choice(("contiguous", "channels_last")),
    )


def volume(seed: int) -> Layer:
    """Of three dimensions and channels in whole eights a group, which the Hopper kernel reads where
    they are. Small in depth and in the plane; some have outputs of no size.
    """
    rng = random.Random(f"volume {seed}")
    groups = rng.choice((1, 1, 2))
    stride = rng.randint(1, 3), rng.randint(1, 2), rng.randint(1, 2)
    dilation = rng.randint(1, 3), rng.randint(1, 2), rng.randint(1, 2)
    limits = [max(pair) - 1 for pair in zip(stride, dilation, strict=True)]
    return Layer(
        seed=seed,
        batch=rng.choice((None, 1, 2, 3)),
        channels=groups * 8 * rng.choice((1, 2, 3, 6, 8, 9)),
        out_channels=groups * rng.choice((1, 5, 16, 24, 70)),
        size=(rng.randint(1, 5), rng.randint(1, 7), rng.choice((3, 4, 8, 9, 12))),
        kernel=(rng.randint(1, 4), rng.randint(1, 3), rng.randint(1, 4)),
        stride=stride,
        padding=tuple(rng.randint(0, 3) for _ in range(3)),
        output_padding=tuple(rng.randint(0, limit) for limit in limits),
        dilation=dilation,
        groups=groups,
        bias=rng.random() < 0.7,
        layout=rng.choice(("contiguous", "contiguous", "channels_last")),
    )


def few_channels(seed: int) -> Layer:
    """Of three dimensions and two to four groups of one to eight input channels; rows are up to two
    of the interleaved kernels' strips long.
    """
    rng = random.Random(seed)
    case = volume(seed)
    groups, out_channels = rng.choice((2, 3, 4)), rng.choice((1, 3, 8, 8, 11))
    stride = *case.stride[:2], rng.choice((1, 2, 2, 3))
    limits = zip(stride, case.dilation, case.output_padding, strict=True)
    return dataclasses.replace(
        case,
        groups=groups,
        channels=groups * rng.choice((1, 3, 7, 8, 8)),
        out_channels=groups * out_channels,
        stride=stride,
        output_padding=tuple(min(wanted, max(of) - 1) for *of, wanted in limits),
        size=(*case.size[:2], rng.choice((*range(1, 9), 40, 63, 64, 65, 100))),
    )


def alike_residues(seed: int) -> Layer:
    """Of three dimensions, with as many taps and mostly as many slices for each residue in depth,
    and output channels for more than half a tile.
    """
    rng = random.Random(seed)
    stride = rng.choice([2, 2, 4]), rng.choice([1, 2]), rng.choice([1, 2])
    groups = rng.choice([1, 1, 2])
    kernel = stride[0] * rng.choice([1, 1, 2]), rng.randint(1, 3), rng.randint(1, 3)
    padding = tuple(rng.randrange(size) for size in kernel)
    more = rng.choice([2 * padding[0] % stride[0]] * 3 + [rng.randrange(stride[0])])
    return Layer(
        seed=rng.randrange(1000),
        batch=rng.choice([None, 1, 2]),
        channels=groups * 8 * rng.randint(1, 3),
        out_channels=groups * rng.choice([33, 64, 100, 128, 256]),
        size=(rng.randint(1, 3), rng.randint(1, 5), rng.choice([3, 4, 9])),
        kernel=kernel,
        stride=stride,
        padding=padding,
        output_padding=(more, *(rng.randrange(step) for step in stride[1:])),
        dilation=(1, 1, 1),
        groups=groups,
        bias=rng.random() < 0.5,
        layout=rng.choice(["contiguous", "channels_last"]),
    )


def deep(seed: int) -> Layer:
    """Of three dimensions, of many channels over few pixels; mostly whole blocks of 64 channels."""
    rng = random.Random(seed)
    stride = tuple(rng.choice([1, 2, 2]) for _ in range(3))
    dilation = tuple(rng.choice([1, 1, 2]) for _ in range(3))
    kernel = tuple(step * rng.choice([1, 1, 2]) + rng.choice([0, 0, 1]) for step in stride)
    groups = rng.choice([1, 1, 1, 2])
    return Layer(
        seed=rng.randrange(1000),
        batch=rng.choice([None, 1, 2, 3]),
        channels=groups * rng.choice([64, 128, 192, 72]),
        out_channels=groups * rng.choice([1, 40, 128, 130, 256]),
        size=tuple(rng.randint(1, 4) for _ in range(3)),
        kernel=kernel,
        stride=stride,
        padding=tuple(rng.randrange(size) for size in kernel),
        output_padding=tuple(
            rng.randrange(max(pair)) for pair in zip(stride, dilation, strict=True)
        ),
        dilation=dilation,
        groups=groups,
        bias=rng.random() < 0.5,
        layout=rng.choice(["contiguous", "channels_last"]),
    )
