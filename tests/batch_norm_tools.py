"""What the tests of BatchNorm alone share: cases, random ones, the truth in float64."""

import dataclasses
import random

import torch
import torch.nn.functional as F


@dataclasses.dataclass(frozen=True)
class NormCase:
    """Sizes, and what BatchNorm has."""

    batch: int
    channels: int
    image: tuple[int, ...]
    affine: bool = True
    tracks: bool = True
    momentum: float | None = 0.1
    mean: float = 0.0
    softmax: bool = False  # over rows of it

    def __str__(self):
        return "-".join(str(value) for value in dataclasses.astuple(self)).replace(" ", "")

    def tensors(self, device="cpu") -> dict[str, torch.Tensor | None]:
        """value, weight, bias, running_mean, running_var and num_batches of the operator."""
        generator = torch.Generator().manual_seed(7)

        def normal(*shape):
            return torch.randn(shape, generator=generator)

        channels = self.channels
        made = {"value": normal(self.batch, channels, *self.image) + self.mean}
        vectors = {"weight": normal(channels), "bias": normal(channels)}
        running = {"running_mean": normal(channels)}
        running["running_var"] = torch.rand(channels, generator=generator) + 0.5
        made |= vectors if self.affine else dict.fromkeys(vectors)
        made |= running if self.tracks else dict.fromkeys(running)
        counted = self.tracks and self.momentum is None
        made["num_batches"] = torch.tensor(3) if counted else None
        return {name: t if t is None else t.to(device) for name, t in made.items()}

    def check(self, normalise, device="cpu") -> torch.Tensor:
        """Output within a few roundings of its terms, running statistics within one."""
        given = self.tensors(device)
        exact = {name: None if t is None else t.double() for name, t in given.items()}
        factor = 1 / 3 if self.momentum is None else self.momentum
        y = F.batch_norm(
            *(exact["value"], exact["running_mean"], exact["running_var"]),
            *(exact["weight"], exact["bias"], True, factor, 1e-5),
        )
        found = normalise(*given.values(), self.momentum or 0.0, 1e-5, self.softmax)
        assert found.dtype == torch.float32 and found.shape == y.shape
        # Roundings of the value, of the scale and of the sum; of the mean, in units of the spread.
        terms = (y - self._vector(exact["bias"], y)).abs() + y.abs()
        spread = exact["value"].std((0, 2, 3), correction=0, keepdim=True).clamp(min=1e-3)
        weight = self._vector(exact["weight"], y, 1.0).abs()
        read = exact["value"].abs() / spread
        bound = 2.0**-24 * (8 * terms + weight * (2 * read + 4)) + 1e-30
        if self.softmax:
            # Of what is normalised twice its largest error in the row; of exp, sum and quotient.
            bound = bound.amax(3, keepdim=True)
            y = torch.softmax(y, 3)
            bound = y * (3 * bound + 2.0**-24 * (8 + 2 * y.shape[3].bit_length())) + 1e-30
        assert bool(((found.double() - y).abs() <= bound).all())
        if self.tracks:
            for name in ("running_mean", "running_var"):
                torch.testing.assert_close(given[name].double(), exact[name], rtol=3e-6, atol=1e-6)
        return found

    def grad(self, device="cpu") -> torch.Tensor:
        """That of the result."""
        generator = torch.Generator().manual_seed(11)
        made = torch.randn((self.batch, self.channels, *self.image), generator=generator)
        return made.to(device)

    def check_gradients(self, backward, device="cpu") -> tuple:
        """Gradients of value, weight and bias, each number within roundings of what it is a sum of;
        a mean that lies far away costs nothing.
        """
        value, weight = (self.tensors(device)[name] for name in ("value", "weight"))
        grad, needs = self.grad(device), (self.affine, self.affine)
        found = backward(grad, value, weight, _EPS, *needs)
        exact, sizes = batch_norm_truth(grad, value, weight)
        for got, wanted, size in zip(found, exact, sizes, strict=True):
            assert got.dtype == torch.float32 and got.is_contiguous()
            if got is not found[0] and not self.affine:
                assert got.shape == (0,)
                continue
            assert got.shape == wanted.shape
            assert bool(((got.double() - wanted).abs() <= 2.0**-24 * 6 * size + 1e-30).all())
        return found

    def _vector(self, vector, like, absent=0.0):
        if vector is None:
            return torch.full((1, 1, 1, 1), absent, dtype=like.dtype, device=like.device)
        return vector.reshape(1, -1, 1, 1)


def batch_norm_truth(grad, value, weight) -> tuple[tuple, tuple]:
    """In float64: the gradients of value, weight and bias, and the sizes of what they are sums of,
    without what cancels.
    """
    axes, like = [0, *range(2, value.dim())], (1, -1, *[1] * (value.dim() - 2))
    given = value.double(), value.new_ones(value.shape[1]) if weight is None else weight
    leaves = [t.double().detach().requires_grad_() for t in (*given, torch.zeros_like(given[1]))]
    y = F.batch_norm(leaves[0], None, None, *leaves[1:], True, 0.0, _EPS)
    exact = torch.autograd.grad(y, leaves, grad.double())
    centred = given[0] - given[0].mean(axes, keepdim=True)
    rstd = (centred.square().mean(axes, keepdim=True) + _EPS).rsqrt()
    normed, d = (centred * rstd).abs(), grad.double().abs()
    products = d * (normed + 1)
    first = (given[1].double().view(like) * rstd).abs()
    means = d.mean(axes, keepdim=True) + normed * products.mean(axes, keepdim=True)
    return exact, (first * (d + means), products.sum(axes), d.sum(axes))


_EPS = 1e-5
CASES = [
    NormCase(2, 3, (6, 8)),
    NormCase(3, 5, (7, 9), affine=False),  # no plane begins at a vector's boundary
    NormCase(1, 4, (1, 2), tracks=False),
    NormCase(2, 2, (40, 52), momentum=None),  # several pieces a plane, the last not whole
    NormCase(2, 3, (33, 35), mean=1000.0),
    NormCase(70, 2, (1, 1)),
    NormCase(2, 33, (16, 32), momentum=0.0),
    NormCase(2, 3, (3, 64), softmax=True),
    NormCase(2, 2, (5, 128), softmax=True, affine=False),  # the last piece holds one row
    NormCase(1, 3, (4, 256), softmax=True, mean=20.0),
    NormCase(3, 1, (2, 512), softmax=True, momentum=None),
]


# Of a warp's planes and of a block's, of one part and of several, of whole vectors and not.
GRADIENT_CASES = [
    *(case for case in CASES if not case.softmax),
    NormCase(3, 2, (47, 45), mean=1000.0),  # a block's; planes begin at no vector's boundary
    NormCase(1, 2, (150, 131), affine=False),  # of two parts
    NormCase(2, 3, (2, 65, 127)),  # likewise, at a vector's boundary but for the first plane
    NormCase(300, 2, (1,)),  # more samples than a block's threads
    NormCase(2, 70, (3, 5, 7)),
    NormCase(1, 1, (2,)),
]


def random_gradient_case(seed: int) -> NormCase:
    rng = random.Random(seed)
    image = tuple(rng.randint(1, 14) for _ in range(rng.randint(1, 3)))
    if rng.random() < 0.2:  # a block's
        image = rng.choice([(43, 53), (2049,), (129, 131), (3, 29, 31)])
    return NormCase(
        rng.randint(2, 5),
        rng.randint(1, 20) if len(image) < 3 else rng.randint(1, 5),
        image,
        affine=rng.random() < 0.7,
        mean=rng.choice([0.0, 3.0, 100.0]),
    )


def random_case(seed: int) -> NormCase:
    rng = random.Random(seed)
    softmax = rng.random() < 0.3
    width = rng.choice([64, 128, 256, 512]) if softmax else rng.randint(1, 40)
    return NormCase(
        rng.randint(2, 5),
        rng.randint(1, 4 if softmax else 40),
        (rng.randint(1, 9 if softmax else 40), width),
        affine=rng.random() < 0.7,
        tracks=rng.random() < 0.7,
        momentum=rng.choice([None, 0.1, 0.5]),
        mean=rng.choice([0.0, 3.0, 100.0]),
        softmax=softmax,
    )
