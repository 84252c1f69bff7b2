"""What the tests of gradients through volumes' convolution and a chain behind it share."""

import dataclasses
import math
import random

import torch

from tests.chain_gradient_tools import ALLOWED
from tests.norm_gradient_tools import CHAINS, chain_vectors
from tests.random_dimensions import Layer, volume

NAMES = ("x", "weight", "bias")


def layer(**changes) -> Layer:
    """A small one, whose channels of a depth tap are a block."""
    given = {
        "seed": 1,
        "batch": 2,
        "channels": 16,
        "out_channels": 64,
        "size": (3, 4, 20),
        "kernel": (3, 3, 3),
        "stride": (1, 1, 1),
        "padding": (1, 1, 1),
        "output_padding": (0, 0, 0),
        "dilation": (1, 1, 1),
        "groups": 1,
        "bias": True,
        "layout": "contiguous",
    }
    return Layer(**(given | changes))


# Layers whose gradient is formed as it is packed: planes by themselves and of two columns at once;
# of one strip and of several, of classes in depth, in rows and in columns, that end in blocks or
# not, that lack taps; in one go of whole volumes and in several.
PACKED = {
    "one_apart": layer(),
    "two_apart": layer(
        channels=24, size=(3, 5, 24), stride=(2, 2, 2), output_padding=(1, 0, 1), batch=3
    ),
    "columns_apart": layer(
        out_channels=128, size=(2, 3, 33), kernel=(2, 2, 4), stride=(1, 1, 2), padding=(0, 1, 2)
    ),
    "strips": layer(batch=1, size=(2, 2, 150), kernel=(2, 1, 5), padding=(1, 0, 2)),
    "strips_of_two": layer(
        batch=1, size=(2, 2, 100), kernel=(1, 2, 4), stride=(1, 1, 2), padding=(0, 0, 1)
    ),
    "rows": layer(out_channels=40, size=(2, 19, 12), kernel=(2, 3, 1), padding=(0, 1, 0)),
    "classes": layer(
        out_channels=24, size=(2, 3, 9), kernel=(3, 2, 4), stride=(3, 2, 1), padding=(1, 0, 1)
    ),
    "depth": layer(
        out_channels=16, size=(4, 3, 12), kernel=(4, 2, 3), stride=(4, 1, 1), padding=(3, 1, 0)
    ),
    "groups": layer(
        channels=32,
        out_channels=128,
        size=(3, 3, 17),
        kernel=(4, 3, 2),
        groups=2,
        stride=(2, 1, 2),
        padding=(1, 0, 0),
    ),
    "dilated": layer(
        size=(3, 4, 18), kernel=(2, 3, 3), padding=(0, 2, 3), dilation=(2, 1, 3), batch=3
    ),
    "many_rows": layer(
        batch=1, size=(1, 26, 8), kernel=(1, 2, 2), stride=(1, 2, 2), padding=(0, 1, 1)
    ),
}
# Those where it is formed first: outputs that no tap reaches, in depth or in rows, classes that
# share eight channels, taps whose channels would more than double.
DECLINED = {
    "gaps_in_depth": layer(kernel=(2, 3, 3), stride=(3, 1, 1)),
    "gaps_in_rows": layer(kernel=(3, 2, 3), stride=(1, 3, 1)),
    "gaps_between_dilated": layer(stride=(2, 1, 1), dilation=(2, 1, 1)),
    "twelve": layer(out_channels=60),
    "doubled": layer(out_channels=24, kernel=(2, 2, 2)),
}


def tensors_of(case: Layer, chain: int, dtype=torch.float32) -> dict:
    """Of a call, by name; None where the layer has no output."""
    x, weight, bias = (None if t is None else t.detach() for t in case.operands(dtype))
    x = x if x.dim() == 5 else x.unsqueeze(0)
    # Outputs of about 1: of larger ones steps like tanh amplify what rounding operands changes.
    fan = case.channels // case.groups * math.prod(case.kernel) / math.prod(case.stride)
    weight = weight / max(1.0, fan) ** 0.5
    try:
        shape = case.reference(x.double(), weight.double(), None).shape
    except RuntimeError:
        return None
    generator = torch.Generator().manual_seed(9)
    vectors = chain_vectors(chain, case.out_channels, dtype)
    grad = torch.randn(shape, generator=generator).to(dtype)
    return {"grad": grad, "x": x, "weight": weight, "bias": bias, "vectors": vectors}


def call(library, case: Layer, given: dict, chain: int, value=None, tf32=True) -> list | None:
    """Gradients of NAMES, then those of the chain's operands; None where it is declined."""
    numbers = [number for axis in case.parameters[:-1] for number in axis]
    vectors = *given["vectors"], *[None] * (4 - len(given["vectors"]))
    *found, of_vectors = library.namespace.depth_chain_gradients.default(
        *(given["grad"], given["x"], given["weight"], given["bias"], *numbers, case.groups, tf32),
        *(*vectors, value, chain, given["bias"] is not None),
    )
    if found[0].numel() == 0:
        assert all(t.numel() == 0 for t in (*found, of_vectors))
        return None
    found = [found[0].view(given["x"].shape), found[1].view(given["weight"].shape), found[2]]
    return [*found, *of_vectors]


def truth(case: Layer, given: dict, chain: int) -> list:
    """The same in float64; None in the place of an absent bias's."""
    names = [name for name in NAMES if given[name] is not None]
    leaves = [given[name] for name in names] + given["vectors"]
    leaves = [t.detach().double().requires_grad_() for t in leaves]
    by_name = dict(zip(names, leaves, strict=False))
    value = case.reference(*(by_name.get(name) for name in NAMES))
    vectors = leaves[len(names) :]
    y = CHAINS[chain][1](value, *(vector.view(-1, 1, 1, 1) for vector in vectors))
    found = list(torch.autograd.grad(y, leaves, given["grad"].double()))
    return found if given["bias"] is not None else [*found[:2], None, *found[2:]]


def given_value(given: dict) -> torch.Tensor:
    """Normal numbers of the output's shape."""
    generator = torch.Generator().manual_seed(2)
    return torch.randn(given["grad"].shape, generator=generator).to(given["grad"].dtype)


def check(found: list, exact: list, dtype, told: object = "") -> None:
    """Every gradient within what is allowed of its size."""
    assert len(found) == len(exact)
    for place, (got, wanted) in enumerate(zip(found, exact, strict=True)):
        if wanted is None:
            assert got.shape == (0,), told
            continue
        assert got.dtype == dtype and got.shape == wanted.shape, told
        error, size = float((got.double() - wanted).norm()), float(wanted.norm())
        assert error <= ALLOWED[dtype] * size, (told, place, error / size)


def random_call(seed: int) -> tuple[Layer, int, torch.dtype]:
    """(a layer with so many output channels that a depth tap's are whole blocks, or half of them;
    the number of the chain behind it; the dtype), the same for a seed everywhere.
    """
    draw = random.Random(f"volume chains {seed}")
    case, dtype = volume(seed), draw.choice(list(ALLOWED))
    kernel, output_padding, dilation, classes = [], [], [], 1
    for axis, stride in enumerate(case.stride):
        often = draw.random() < 0.9  # so that every output is reached
        apart = 1 if often and stride > 1 else case.dilation[axis]
        of_axis = stride // math.gcd(stride, apart)
        taps = max(case.kernel[axis], of_axis)
        if dtype != torch.float32:  # as many in each class
            taps = math.ceil(taps / of_axis) * of_axis
        most = min(case.padding[axis], stride - 1) if often else max(stride, apart) - 1
        kernel.append(taps)
        dilation.append(apart)
        output_padding.append(min(case.output_padding[axis], most))
        classes *= min(taps, of_axis)
    channels = draw.choice((8 * math.ceil(4 / classes), 24, 40, 64, 64, 128))
    width = draw.choice((case.size[2], case.size[2], draw.randint(13, 90)))
    made = dataclasses.replace(
        case,
        kernel=tuple(kernel),
        output_padding=tuple(output_padding),
        dilation=tuple(dilation),
        out_channels=case.groups * channels,
        size=(*case.size[:2], width),
    )
    return made, draw.randrange(len(CHAINS)), dtype
