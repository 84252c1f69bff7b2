"""What the tests of GroupNorm alone share: cases, random ones, the truth in float64."""

import dataclasses
import random

import torch
import torch.nn.functional as F

_UNIT = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
_UNIT[torch.float64] = 2.0**-53


@dataclasses.dataclass(frozen=True)
class GroupCase:
    """Sizes, and what GroupNorm has."""

    batch: int
    channels: int
    groups: int
    image: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    affine: bool = True
    mean: float = 0.0

    def __str__(self):
        return "-".join(str(value) for value in dataclasses.astuple(self)).replace(" ", "")

    def tensors(self, device="cpu") -> tuple:
        """value, weight, bias and the gradient behind them."""
        generator = torch.Generator().manual_seed(7)

        def normal(*shape):
            return torch.randn(shape, generator=generator)

        shape = self.batch, self.channels, *self.image
        made = normal(*shape) + self.mean, normal(self.channels), normal(self.channels)
        made = [t.to(device, self.dtype) for t in (*made, normal(*shape))]
        return tuple(made) if self.affine else (made[0], None, None, made[3])

    def check(self, library, device="cpu") -> tuple:
        """Output and gradients against float64: the output value by value, within roundings of its
        terms; gradients within some of their size, the value's within some of its first term's,
        of which it is a difference.
        """
        value, weight, bias, grad = self.tensors(device)
        found = library.normalise(value, weight, bias, self.groups, 1e-5)
        needs = self.affine, self.affine
        grads = library.backward(grad, value, weight, self.groups, 1e-5, *needs)
        leaves = [t.double().requires_grad_() for t in (value, weight, bias) if t is not None]
        vectors = leaves[1:] or [None, None]
        y = F.group_norm(leaves[0], self.groups, *vectors, 1e-5)
        exact = torch.autograd.grad(y, leaves, grad.double())
        assert found.dtype == self.dtype and found.shape == y.shape and found.is_contiguous()
        unit, y = _UNIT[self.dtype], y.detach()
        sums = max(unit, 2.0**-24) if self.dtype != torch.float64 else unit
        of_group = leaves[0].detach().reshape(self.batch, self.groups, -1)
        rstd = (of_group.var(2, correction=0, keepdim=True) + 1e-5).rsqrt()
        read = (of_group.abs() * rstd).reshape(y.shape)
        like = (1, -1, *[1] * len(self.image))
        scale = 1.0 if weight is None else weight.double().abs().view(like)
        terms = y.abs() + (0.0 if bias is None else (y - bias.double().view(like)).abs())
        kept = torch.finfo(self.dtype).tiny
        small = sums if self.dtype == torch.float64 else 2.0**-24
        bound = unit * y.abs() + small * (8 * terms + scale * (2 * read + 4)) + kept
        assert bool(((found.double() - y).abs() <= bound).all())
        scaled = (grad.double() * scale).reshape(of_group.shape) * rstd
        sizes = [float(scaled.detach().norm()), *(float(t.detach().norm()) for t in exact[1:])]
        # Groups of few values nearly equal: the mean's rounding in units of the spread.
        allowed = 20 * unit + 100 * small * (1 + float(read.max()) / 8)
        for got, wanted, size in zip(grads, exact, sizes, strict=False):
            assert got.dtype == self.dtype and got.shape == wanted.shape
            assert float((got.double() - wanted).norm()) <= allowed * size + kept
        assert self.affine or all(g.shape == (0,) for g in grads[1:])
        return found, *grads


_LOW = (torch.float16, torch.bfloat16, torch.float64)
CASES = [
    GroupCase(2, 4, 2, (5, 6, 8)),  # one block, a warp for each channel
    GroupCase(2, 6, 3, (3, 5, 7), affine=False),  # no group begins at a vector's boundary
    GroupCase(1, 4, 1, (3,)),
    GroupCase(2, 4, 2, (10, 33, 32)),  # in pieces
    GroupCase(1, 6, 2, (9, 35, 33), mean=300.0),
    *(GroupCase(2, 4, 2, (4, 6, 8), dtype) for dtype in _LOW),
    *(GroupCase(1, 4, 1, (13, 33, 35), dtype) for dtype in _LOW),
    GroupCase(3, 70, 7, (1, 2)),
    GroupCase(2, 4, 2, (4, 6, 8)),  # one block
]


def random_case(seed: int) -> GroupCase:
    rng = random.Random(seed)
    groups = rng.choice([1, 2, 3, 8])
    image = tuple(rng.randint(1, 14) for _ in range(rng.randint(1, 3)))
    return GroupCase(
        rng.randint(1, 4),
        groups * rng.randint(1, 5),
        groups,
        image if len(image) > 1 else (image[0] * 97,),
        rng.choice([torch.float32, torch.float32, torch.float16, torch.bfloat16, torch.float64]),
        affine=rng.random() < 0.7,
        mean=rng.choice([0.0, 3.0]),
    )
