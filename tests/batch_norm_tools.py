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
    image: tuple[int, int]
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

    def _vector(self, vector, like, absent=0.0):
        if vector is None:
            return torch.full((1, 1, 1, 1), absent, dtype=like.dtype, device=like.device)
        return vector.reshape(1, -1, 1, 1)


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
