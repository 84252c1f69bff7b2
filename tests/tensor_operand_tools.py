"""What the tests of operands of the output's shape share: the chain of tests/references/
residual_blocks.py behind random layers, its truth in float64 and what each result may be off.
"""

import dataclasses
import random

import torch
import torch.nn.functional as F

from tests.random_dimensions import CONV, Layer, layer, volume

CONVS = {**CONV, 2: F.conv_transpose2d}
# Of an operand of a product: TF32's 11 significant bits, or 8.
STEPS = {
    torch.float64: 2.0**-50,
    torch.float32: 2.0**-11,
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
}

FLOORS = {torch.float16: 2.0**-24}  # its smallest number


def image(seed: int, channels: tuple = (1, 2, 3, 8, 40), wide: int = 12) -> Layer:
    """Of two dimensions."""
    rng = random.Random(f"image {seed}")
    groups = rng.choice((1, 1, 2))
    stride = rng.randint(1, 3), rng.choice((1, 1, 2, 2, 3))
    dilation = rng.randint(1, 2), rng.randint(1, 2)
    limits = [max(pair) - 1 for pair in zip(stride, dilation, strict=True)]
    return Layer(
        seed=seed,
        batch=rng.choice((None, 1, 2, 3)),
        channels=groups * rng.choice(channels),
        out_channels=groups * rng.choice((1, 3, 16, 24, 70)),
        size=(rng.randint(1, 7), rng.randint(1, wide)),
        kernel=(rng.randint(1, 4), rng.randint(1, 4)),
        stride=stride,
        padding=(rng.randint(0, 2), rng.randint(0, 2)),
        output_padding=tuple(rng.randint(0, limit) for limit in limits),
        dilation=dilation,
        groups=groups,
        bias=rng.random() < 0.7,
        layout=rng.choice(("contiguous", "channels_last")),
    )


MADE = {1: lambda seed: layer(1, seed), 2: image, 3: lambda seed: layer(3, seed)}
WHOLE_VOLUMES = volume  # of channels that kernels read in place


@dataclasses.dataclass
class Given:
    """A layer's operands: x, weight, bias (or None), gate, skip and scale, and a gradient."""

    layer: Layer
    operands: list
    grad: torch.Tensor

    @property
    def names(self) -> list[str]:
        names = ["x", "weight", "bias", "gate", "skip", "scale"]
        return [n for n, t in zip(names, self.operands, strict=True) if t is not None]

    @property
    def leaves(self) -> list[torch.Tensor]:
        return [t for t in self.operands if t is not None]


def given(case: Layer, dtype=torch.float32, device="cpu") -> Given | None:
    """None for a layer without an output."""
    operands = [t if t is None else t.detach() for t in case.operands(dtype, device)]
    try:
        shape = _convolved(case, [t if t is None else t.to("meta") for t in operands]).shape
    except RuntimeError:
        return None
    if 0 in shape[-case.dimensions :]:  # PyTorch refuses it where there is data
        return None
    made = torch.Generator().manual_seed(case.seed)
    more = [torch.randn(shape, generator=made, dtype=torch.float64) for _ in range(3)]
    scale = torch.rand(case.out_channels, generator=made, dtype=torch.float64) + 0.5
    gate, skip, grad = (t.to(device, dtype) for t in more)
    if case.layout == "channels_last" and case.batch is not None:
        skip = skip.movedim(1, -1).contiguous().movedim(-1, 1)
    operands = [*operands, gate, skip, scale.to(device, dtype)]
    return Given(case, [t if t is None else t.requires_grad_() for t in operands], grad)


def _convolved(case: Layer, operands: list) -> torch.Tensor:
    stride, padding, output_padding, dilation, groups = case.parameters
    conv = CONVS[case.dimensions]
    return conv(*operands, stride, padding, output_padding, groups, dilation)


def truth(of: Given) -> tuple[torch.Tensor, list]:
    """(result, gradients of the leaves) in float64."""
    double = [t if t is None else t.detach().double().requires_grad_() for t in of.operands]
    gate, skip, scale = double[3:]
    value = _convolved(of.layer, double[:3])
    scale = scale.view(-1, *[1] * of.layer.dimensions)
    y = torch.tanh(value * gate + skip) * scale
    leaves = [t for t in double if t is not None]
    return y, list(torch.autograd.grad(y, leaves, of.grad.double(), allow_unused=True))


def called(solution: dict, of: Given) -> torch.Tensor:
    """By the solution of residual_blocks."""
    x, weight, bias, *more = of.operands
    call, parameters = solution["_operator"], of.layer.parameters
    if of.layer.dimensions == 2:
        return call(x, weight, bias, *parameters, *more)
    if of.layer.dimensions == 1:
        rows = [t.unsqueeze(-2) for t in more[:2]]
        operands = x, weight, bias, *parameters, *rows, more[2]
        return solution["_in_one_dimension"](call, *operands)
    volumes = [solution["_with_batch_dimension"](t, 5) for t in more[:2]]
    chain = solution["_CHAIN"], solution["_CHAIN_NUMBER"]
    operands = x, weight, bias, *parameters, *volumes, more[2]
    return solution["_in_three_dimensions"](call, "", chain, *operands)


# Of one layer's operands another's: one tensor twice, or one computed from others.
SHARED = {
    "twice": lambda x, weight, bias, gate, skip, scale: (x, weight, bias, skip, skip, scale),
    "computed": lambda x, weight, bias, gate, skip, scale: (
        *(x, weight, bias),
        *(gate + x.mean(), skip * weight.mean(), scale + x.mean()),
    ),
}


def shared_truth(of: Given, how: str, again: bool) -> list[torch.Tensor]:
    """In float64 the gradients of the leaves, and with `again` those of the sum of their squares,
    of the layer with SHARED[how] of its operands.
    """
    double = [t if t is None else t.detach().double().requires_grad_() for t in of.operands]

    def result(operands):
        *convolved, gate, skip, scale = operands
        value = _convolved(of.layer, convolved)
        return torch.tanh(value * gate + skip) * scale.view(-1, *[1] * of.layer.dimensions)

    return shared_gradients(result, dataclasses.replace(of, operands=double), how, again)


def shared_gradients(result, of: Given, how: str, again: bool) -> list[torch.Tensor]:
    """Likewise, of result(operands)."""
    y = result(SHARED[how](*of.operands))
    grad = of.grad.to(y.dtype)
    found = torch.autograd.grad(
        y, of.leaves, grad, create_graph=again, allow_unused=True, materialize_grads=True
    )
    if not again:
        return list(found)
    squares = sum(g.square().sum() for g in found)
    return [*found, *torch.autograd.grad(squares, of.leaves, materialize_grads=True)]


def wrong(of: Given, found: list, dtype=None) -> list[str]:
    """What of the result and the gradients (None: not to be looked at) lies farther from the truth
    than rounding every operand of its products allows.
    """
    dtype = dtype or of.operands[0].dtype
    y, gradients = truth(of)
    sizes = _sizes(of)
    told = []
    for name, got, exact, size in zip(
        ["result", *of.names], found, [y, *gradients], sizes, strict=True
    ):
        if got is None:
            continue
        if got.shape != exact.shape or got.dtype != of.operands[0].dtype:
            told.append(f"{name}: {got.dtype} {tuple(got.shape)}")
            continue
        off = (got.double() - exact).abs()
        beyond = off > 4 * STEPS[dtype] * size + FLOORS.get(dtype, 1e-30)
        if bool(beyond.any()):
            told.append(f"{name}: {float((off / (STEPS[dtype] * size + 1e-30)).max()):.3g} steps")
    return told


def _sizes(of: Given) -> list[torch.Tensor]:
    """Of what each result is summed from: everything by its absolute values, tanh by its argument.
    The slope of tanh is off by no more than its argument is.
    """
    sizes = [t if t is None else t.detach().double().abs().requires_grad_() for t in of.operands]
    gate, skip, scale = sizes[3:]
    value = _convolved(of.layer, sizes[:3])
    inner = value * gate + skip
    y = inner * scale.view(-1, *[1] * of.layer.dimensions)
    leaves = [t for t in sizes if t is not None]
    grad = of.grad.double().abs() * (1 + inner.detach())
    return [y.detach(), *torch.autograd.grad(y, leaves, grad)]
