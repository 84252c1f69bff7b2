"""The layers of the shapes benchmark, and why some are not faster than PyTorch."""

import math
from dataclasses import dataclass

from harness.errors import UsageError


@dataclass(frozen=True)
class Shape:
    """One transposed convolution. `size` is the input's: [depth,] height and width, or length."""

    name: str
    batch: int
    in_channels: int
    out_channels: int
    size: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0)
    output_padding: tuple[int, ...] = (0, 0)
    dilation: tuple[int, ...] = (1, 1)
    groups: int = 1
    bias: bool = False

    @property
    def arguments(self) -> tuple:
        """Constructor arguments of the model of problem 1/69, or of harness/measure/layers/."""
        layer = self.in_channels, self.out_channels, self.kernel, self.stride, self.padding
        return (*layer, self.output_padding, self.dilation, self.groups, self.bias)

    @property
    def sample_flops(self) -> int:
        """FLOPs of one sample: 2 * in_channels / groups * out_channels * taps * input positions."""
        per_tap = self.in_channels // self.groups * self.out_channels
        return 2 * per_tap * math.prod(self.kernel) * math.prod(self.size)

    def input_shape(self, batch: int) -> tuple[int, ...]:
        """[batch, in_channels, *size]."""
        return (batch, self.in_channels, *self.size)


# Batches are such that a call takes about 0.05 to 0.3 ms on an NVIDIA H200.
SHAPES = (
    Shape("1x1", 16, 128, 128, (128, 128), (1, 1)),
    Shape("1x1-stride2", 16, 64, 64, (128, 128), (1, 1), (2, 2)),
    # Upsampling in U-Net, high and deep in the network.
    Shape("2x2-stride2", 16, 128, 64, (128, 128), (2, 2), (2, 2), bias=True),
    Shape("2x2-stride2-deep", 128, 256, 128, (28, 28), (2, 2), (2, 2), bias=True),
    Shape("3x3-image7", 1024, 256, 256, (7, 7), (3, 3), padding=(1, 1)),
    Shape("3x3-image14", 512, 128, 128, (14, 14), (3, 3), padding=(1, 1)),
    Shape("3x3-image32", 64, 256, 256, (32, 32), (3, 3), padding=(1, 1)),
    Shape("3x3-image56", 128, 64, 64, (56, 56), (3, 3), padding=(1, 1)),
    Shape("3x3-image512", 4, 32, 32, (512, 512), (3, 3), padding=(1, 1)),
    Shape("3x3-batch1", 1, 64, 64, (512, 512), (3, 3), padding=(1, 1)),
    Shape("3x3-stride2", 32, 128, 64, (64, 64), (3, 3), (2, 2), (1, 1), (1, 1)),
    Shape("3x3-dilation2", 32, 128, 64, (96, 96), (3, 3), padding=(2, 2), dilation=(2, 2)),
    Shape("3x3-odd", 64, 33, 65, (101, 83), (3, 3), padding=(1, 1)),
    Shape("3x3-groups4", 64, 128, 128, (64, 64), (3, 3), padding=(1, 1), groups=4),
    # DCGAN's generator, in the middle and its last layer.
    Shape("4x4-stride2", 256, 256, 128, (16, 16), (4, 4), (2, 2), (1, 1)),
    Shape("4x4-stride2-rgb", 64, 64, 3, (128, 128), (4, 4), (2, 2), (1, 1)),
    Shape("4x4-stride2-groups2", 64, 256, 128, (32, 32), (4, 4), (2, 2), (1, 1), groups=2),
    # Bilinear upsampling as a layer.
    Shape("4x4-stride2-depthwise", 16, 64, 64, (112, 112), (4, 4), (2, 2), (1, 1), groups=64),
    Shape("5x5", 32, 96, 96, (64, 64), (5, 5), padding=(2, 2)),
    Shape("5x5-stride3", 32, 64, 64, (48, 48), (5, 5), (3, 3), (1, 1)),
    Shape("1x7", 16, 96, 64, (128, 128), (1, 7), padding=(0, 3)),
    Shape("7x7", 16, 32, 32, (224, 224), (7, 7), padding=(3, 3)),
)


def _of(dimensions: int, name: str, batch: int, channels: tuple, size: int | tuple, kernel: int,
        stride: int = 1, padding: int = 0, output_padding: int = 0, dilation: int = 1,
        groups: int = 1) -> Shape:  # fmt: skip
    """A shape whose numbers are those of every axis."""
    numbers = kernel, stride, padding, output_padding, dilation
    axes = [(number,) * dimensions for number in numbers]
    whole = size if isinstance(size, tuple) else (size,) * dimensions
    return Shape(name, batch, *channels, whole, *axes, groups)


# Of one dimension: vocoders (HiFi-GAN upsamples by 8 and 2 with kernels 16 and 4), U-Nets of audio.
_LINES = (
    _of(1, "2-stride2", 16, (128, 64), 65536, 2, 2),
    _of(1, "4-stride2", 16, (128, 64), 32768, 4, 2, 1),
    _of(1, "16-stride8", 16, (256, 128), 4096, 16, 8, 4),
    _of(1, "3", 16, (128, 128), 32768, 3, padding=1),
    _of(1, "7-dilation3", 16, (64, 64), 65536, 7, padding=9, dilation=3),
    _of(1, "5-groups4", 16, (128, 128), 32768, 5, padding=2, groups=4),
)
# Of three: nnU-Net and V-Net double each axis with kernels of 2; GANs of volumes with kernels of 4.
_VOLUMES = (
    _of(3, "2x2x2-stride2", 4, (128, 64), 32, 2, 2),
    _of(3, "2x2x2-stride2-deep", 8, (320, 256), 8, 2, 2),
    _of(3, "4x4x4-stride2", 8, (128, 64), 16, 4, 2, 1),
    _of(3, "3x3x3", 4, (32, 32), (32, 64, 64), 3, padding=1),
    _of(3, "3x3x3-stride2", 4, (64, 32), (16, 32, 32), 3, 2, 1, 1),
    _of(3, "3x3x3-groups4", 4, (64, 64), (16, 32, 32), 3, padding=1, groups=4),
)
# By dimensions.
ALL_SHAPES = {1: _LINES, 2: SHAPES, 3: _VOLUMES}

# Why a shape is below 1x: by the folder of the record, the record's file name without .json, and
# the shape's name. A test wants an entry for each such shape of a committed record. What is said
# of the Hopper kernel follows from its plan (kernels_src/cuda/conv_transpose_hopper_plan.h); times
# of 1x1 and 5x5-stride3 are of builds with parts left out, or with another kernel forced.
WHY: dict[str, dict[str, str]] = {
    "nvidia-h200/shapes": {
        "1x1": "bytes decide: without its epilogue the call still took 0.08 ms",
        "3x3-image7": "77 % of a tile's pixels are outputs; rows no multiple of four long, so "
        "pixels are loaded one by one",
        "3x3-groups4": "32 channels a group: half of each 64-channel tile is padding",
        "4x4-stride2": "images of 16 x 16: a fifth of a tile's pixels are no outputs, and 1 MB of "
        "weights is streamed for each image",
        "5x5-stride3": "strides over two are the portable kernel's, 0.25 ms against Hopper's 0.30",
    },
    "nvidia-h200/shapes-backward": {
        "1x1": "bytes decide: the two products take 0.07 and 0.09 of 0.31 ms, g is written and "
        "read once more for the input's gradient, and small kernels and launches take 0.05",
        "3x3-image7": "rows of 7 pixels are packed side by side, but read again in lines with "
        "zeros between: the input's gradient takes 0.27 of 0.70 ms, forward 0.16",
        "3x3-stride2": "7 of 16 taps of the planes are absent, and multiplied as zeros: the "
        "input's gradient takes 0.13 of 0.44 ms, packing 0.09",
        "4x4-stride2": "images of 16 x 16, as forward: 0.27 of 0.93 ms there, 0.32 of the input's "
        "gradient, which reads each window of 512 channels twice",
        "5x5-stride3": "forward by the portable kernel, as above, takes 0.23 of 0.56 ms",
    },
    "nvidia-h100/shapes-backward": {
        "1x1": "bytes decide: forward is 0.11 of 0.38 ms, g is written and read once more for the "
        "input's gradient, a sixth of all bytes, and small kernels and launches take 0.06",
        "1x1-stride2": "forward takes 0.19 of 0.44 ms, packing 0.10, the sums of one tap 0.03",
        "3x3-image7": "rows of 7 pixels are packed side by side, but read again in lines with "
        "zeros between: the input's gradient takes 0.26 of 0.73 ms, forward 0.17",
        "3x3-image14": "packing takes 0.09 of 0.38 ms, small kernels and their launches 0.07",
        "3x3-stride2": "7 of 16 taps of the planes are absent, and multiplied as zeros: the "
        "input's gradient takes 0.13 of 0.49 ms, packing 0.13",
        "4x4-stride2": "images of 16 x 16, as forward: 0.28 of 0.95 ms there, 0.32 of the input's "
        "gradient, which reads each window of 512 channels twice",
        "5x5-stride3": "forward by the portable kernel, as above, takes 0.23 of 0.60 ms",
    },
}


def why(device: str, record_name: str, shape: str) -> str:
    """The reason why that shape is below 1x in that record, "" where none is given."""
    return WHY.get(f"{device}/{record_name}", {}).get(shape, "")


def select(text: str | None, dimensions: int = 2) -> list[Shape]:
    """The shapes of a comma-separated list of names, in the benchmark's order; all for None.

    Raises UsageError for a name that is none of these dimensions'.
    """
    shapes = ALL_SHAPES[dimensions]
    if text is None:
        return list(shapes)
    wanted, known = set(text.split(",")), [shape.name for shape in shapes]
    if unknown := sorted(wanted - set(known)):
        raise UsageError(f"--shapes {', '.join(unknown)}: allowed are {', '.join(known)}")
    return [shape for shape in shapes if shape.name in wanted]
