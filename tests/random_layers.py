"""Random transposed convolutions, each made anew from (seed, index) on every machine and with every
version of Python, for fuzzing the operator: on a GPU (tests/fuzz_operator.py), on a CPU, and in the
emulator of CUDA kernels, where sizes must be small.
"""

import dataclasses
import math
import random
from collections.abc import Iterator

import torch

from tests.gpu_tools import LAYOUTS
from tests.solution_tools import Case

# Four ways to lay the input out, each drawn as often.
_LAYOUT_KINDS = (
    ("contiguous",),
    ("channels_last",),
    ("column_window", "row_window", "channel_window", "aligned_window", "strided", "offset_1"),
    ("transposed", "batch_expanded", "channels_expanded", "columns_expanded"),
)
_DTYPES = (
    torch.float32,
    torch.float32,
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
)


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What bounds a random layer: most channels, rows or columns of an image, samples; products
    (half of the floating-point operations) and elements of input or output, of the whole layer.
    """

    channels: int
    extent: int
    batch: int
    products: float
    elements: float


SIZES = {
    "full": Sizes(channels=256, extent=90, batch=17, products=1e9, elements=1.6e7),
    "medium": Sizes(channels=256, extent=90, batch=17, products=6e6, elements=2e5),  # for CPUs
    "small": Sizes(channels=70, extent=20, batch=3, products=4e5, elements=8e3),  # for the emulator
}


@dataclasses.dataclass(frozen=True)
class RandomLayer:
    """A layer and how it is called; printed in one line that says both."""

    seed: int
    index: int
    sizes: str
    case: Case
    dtype: torch.dtype
    layout: str  # of the input, a name of tests/gpu_tools.py or contiguous
    allow_tf32: bool
    gradients: bool  # of input, weight and bias as well

    def __str__(self) -> str:
        case = self.case
        shape = (case.batch, case.in_channels, *case.size)
        said = [str(self.dtype).removeprefix("torch."), f"input {shape} {self.layout}"]
        if self.dtype == torch.float32:
            said.append("TF32 allowed" if self.allow_tf32 else "TF32 forbidden")
        said += ["gradients"] * self.gradients
        return f"{self.call}, {', '.join(said)}"

    @property
    def call(self) -> str:
        """The layer as PyTorch makes it."""
        case = self.case
        given = [str(case.in_channels), str(case.out_channels), str(case.kernel)]
        for name in ("stride", "padding", "output_padding", "dilation", "groups", "bias"):
            value = getattr(case, name)
            if value != getattr(Case, name):
                given.append(f"{name}={value}")
        return f"nn.ConvTranspose2d({', '.join(given)})"

    def tensors(self, device="cpu") -> tuple:
        """(x, weight, bias or None): zero-mean numbers of the layer's dtype, made on `device`."""
        case = self.case
        generator = torch.Generator(device).manual_seed(self.seed * 1_000_003 + self.index)
        x, weight, bias = (
            torch.randn(shape, generator=generator, device=device).to(self.dtype)
            for shape in (
                (case.batch, case.in_channels, *case.size),
                (case.in_channels, case.out_channels // case.groups, *case.kernel),
                (case.out_channels,),
            )
        )
        if self.layout != "contiguous":
            x = LAYOUTS[self.layout](x)
        return x, weight, bias if case.bias else None


def random_layer(seed: int, index: int, sizes: str = "full") -> RandomLayer:
    """Layer `index` of `seed`; `sizes` is a name of SIZES."""
    draw = random.Random(f"{seed}:{index}:{sizes}")  # of a string: the same everywhere
    case = _random_case(draw, SIZES[sizes])
    return RandomLayer(
        seed,
        index,
        sizes,
        case,
        dtype=draw.choice(_DTYPES),
        layout=draw.choice(draw.choice(_LAYOUT_KINDS)),
        allow_tf32=draw.random() < 0.5,
        gradients=draw.random() < 1 / 3,
    )


def random_layers(
    seed: int, count: int, sizes: str = "full", first: int = 0
) -> Iterator[RandomLayer]:
    """`count` layers of `seed` from index `first` on."""
    return (random_layer(seed, index, sizes) for index in range(first, first + count))


def _random_case(draw: random.Random, most: Sizes) -> Case:
    groups = draw.choice((1, 1, 1, 1, 2, 3, 4, 8, 0))
    if groups == 0:  # depthwise, perhaps with several outputs to an input
        groups = _spread(draw, most.channels)
        inputs, outputs = groups, groups * draw.randint(1, max(1, min(3, most.channels // groups)))
    else:
        inputs, outputs = (groups * _spread(draw, most.channels // groups) for _ in range(2))
    kernel, stride, dilation = _pair(draw, 9), _pair(draw, 4), _pair(draw, 4)
    size = tuple(draw.randint(1, draw.choice((3, most.extent, most.extent))) for _ in range(2))
    batch = draw.randint(1, most.batch)
    # Less of what is largest until the work is bounded; images keep their narrow side.
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    while True:
        per_sample = math.prod(size)
        full = math.prod((n - 1) * s + r + 3 for n, s, r in zip(size, stride, reach, strict=True))
        products = batch * inputs * (outputs // groups) * math.prod(kernel) * per_sample
        elements = batch * max(inputs * per_sample, outputs * full)
        if products <= most.products and elements <= most.elements:
            break
        if batch > 1:
            batch //= 2
        elif max(size) > 6:
            size = (size[0] // 2, size[1]) if size[0] > size[1] else (size[0], size[1] // 2)
        elif max(inputs, outputs) > groups:
            inputs, outputs = (
                groups * max(1, c // groups // 2) if c == max(inputs, outputs) else c
                for c in (inputs, outputs)
            )
        elif groups > 1:
            inputs = outputs = groups = groups // 2
        else:
            kernel = tuple((k + 1) // 2 for k in kernel)
            reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    output_padding, padding = [], []
    for n, s, d, r in zip(size, stride, dilation, reach, strict=True):
        output_padding.append(draw.choice((0, draw.randint(0, max(s, d) - 1))))
        extent = (n - 1) * s + r + output_padding[-1]  # with no padding; one output must be left
        padding.append(draw.choice((0, draw.randint(0, min((extent - 1) // 2, r + 1)))))
    return Case(
        batch=batch,
        in_channels=inputs,
        out_channels=outputs,
        size=size,
        kernel=kernel,
        stride=stride,
        padding=tuple(padding),
        output_padding=tuple(output_padding),
        dilation=dilation,
        groups=groups,
        bias=draw.random() < 0.7,
    )


def _spread(draw: random.Random, most: int) -> int:
    """1 to `most`: of every magnitude as often, or `most` itself, or what fills whole blocks."""
    number = round(math.exp(draw.uniform(0, math.log(most + 0.49))))
    return min(most, draw.choice((number, number, number, most, 16 * (number // 16 + 1))))


def _pair(draw: random.Random, most: int) -> tuple[int, int]:
    """Two numbers from 1 on, small ones more often, the same in a third of all pairs."""
    first, second = (draw.randint(1, draw.choice((1, 3, most))) for _ in range(2))
    return first, draw.choice((first, second, second))
