"""What the tests of the gradients through BatchNorm, activation, max-pool and GroupNorm share:
cases, random ones, the truth in float64.
"""

import dataclasses
import random

import torch
import torch.nn.functional as F

from generator import ops
from generator.step_table import gradient_header

_RECORDS = {record.name: record for record in ops.RECORDS}
# By their numbers in the tests' library.
ACTIVATIONS = [("tanh", torch.tanh), ("relu", torch.relu)]
ALLOWED = {torch.float32: 5e-6, torch.float64: 1e-12, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def activations_header() -> str:
    """The text of generated_gradient.h with ACTIVATIONS."""
    return gradient_header([[_RECORDS[name].make()] for name, _ in ACTIVATIONS])


@dataclasses.dataclass(frozen=True)
class PoolCase:
    """Sizes and arguments; `training`: by the batch's statistics."""

    batch: int
    channels: int
    groups: int
    image: tuple[int, int]
    kernel: tuple[int, int] = (2, 2)
    stride: tuple[int, int] = (2, 2)
    ceil: bool = False
    training: bool = True
    activation: int = 0
    mean: float = 0.0
    kept: bool = False  # the batch's statistics, of forward

    def __str__(self):
        words = [str(value) for value in dataclasses.astuple(self)]
        return "-".join(words).replace(" ", "")

    def tensors(self, dtype=torch.float32, device="cpu") -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(5)

        def normal(*shape):
            return torch.randn(shape, generator=generator)

        value = normal(self.batch, self.channels, *self.image) + self.mean
        made = {"value": value, "weight": normal(self.channels), "bias": normal(self.channels)}
        made |= {"group_weight": normal(self.channels), "group_bias": normal(self.channels)}
        made["grad"] = normal(*self.pooled(value).shape)
        made = {name: tensor.to(device, dtype) for name, tensor in made.items()}
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        made["running_mean"] = (normal(self.channels) / 4 + self.mean).to(device, wide)
        made["running_var"] = (torch.rand(self.channels, generator=generator) + 0.5).to(
            device, wide
        )
        return made

    def pooled(self, value: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(value, self.kernel, self.stride, ceil_mode=self.ceil)

    def statistics(self, given: dict) -> tuple:
        """Mean and variance as the operator is told them: the running ones, or of the batch those
        that a forward kept, or nothing.
        """
        if not self.training:
            return given["running_mean"], given["running_var"]
        if not self.kept:
            return None, None
        wide = given["value"].to(
            torch.float64 if given["value"].dtype == torch.float64 else torch.float32
        )
        return tuple(
            t.to(wide.dtype) for t in torch.var_mean(wide.double(), (0, 2, 3), correction=0)[::-1]
        )

    def kernels(self, backward, given: dict, needs=(True,) * 5, pad_rows=False) -> tuple:
        """The operator's answer."""
        return backward(
            *(given["grad"], given["value"], given["weight"], given["bias"]),
            *(*self.statistics(given), self.training, 1e-5),
            *(*self.kernel, *self.stride, given["group_weight"], self.groups, 1e-5),
            *(*needs, pad_rows, self.activation),
        )

    def truth(self, given: dict, dtype=torch.float64) -> list[torch.Tensor]:
        """In float64; PyTorch's answer in another dtype."""
        names = ("value", "weight", "bias", "group_weight", "group_bias")
        leaves = {
            name: given[name].detach().to(dtype, copy=True).requires_grad_() for name in names
        }
        statistics = [given[f"running_{name}"].to(dtype, copy=True) for name in ("mean", "var")]
        y = F.batch_norm(
            *(leaves["value"], *statistics, leaves["weight"], leaves["bias"], self.training),
            eps=1e-5,
        )
        y = self.pooled(ACTIVATIONS[self.activation][1](y))
        y = F.group_norm(y, self.groups, leaves["group_weight"], leaves["group_bias"], 1e-5)
        grads = torch.autograd.grad(y, list(leaves.values()), given["grad"].to(dtype))
        return [*grads, grads[0].sum((0, 2, 3))]

    def theirs(self, given: dict, dtype) -> list[torch.Tensor]:
        """PyTorch's answer in fp32; for fp64, where its answer is the truth, the one for values
        that differ by a unit in the last place.
        """
        if dtype != torch.float64:
            return self.truth(given, torch.float32)
        signs = torch.randint(
            0, 2, given["value"].shape, generator=torch.Generator().manual_seed(6)
        )
        moved = given["value"] * (1 + (2 * signs.to(given["value"]) - 1) * 2.0**-52)
        return self.truth(given | {"value": moved})

    def check(self, backward, dtype, device="cpu") -> tuple:
        """Every gradient within ALLOWED of its size, or at most twice as far off as PyTorch's: a
        norm behind a norm leaves little of the first one's. Sums of the first one: of its terms.
        """
        given = self.tensors(dtype, device)
        found, exact = self.kernels(backward, given), self.truth(given)
        theirs = self.theirs(given, dtype)
        for index, (got, wanted) in enumerate(zip(found, exact, strict=True)):
            size = float(exact[0].norm() if index == 5 else wanted.norm())
            assert got.dtype == dtype
            error = float((got.double() - wanted).norm())
            pytorch = float((theirs[index].double() - wanted).norm())
            assert error <= max(ALLOWED[dtype] * size, 2 * pytorch), (
                index,
                error,
                size,
                pytorch,
            )
        return found


CASES = [
    PoolCase(2, 4, 2, (6, 8)),
    PoolCase(3, 6, 3, (7, 10), activation=1),
    PoolCase(2, 4, 2, (7, 9), ceil=True),
    PoolCase(2, 6, 2, (11, 13), (3, 2), (3, 2), training=False),
    PoolCase(2, 4, 4, (12, 11), (2, 1), (3, 4)),
    PoolCase(1, 8, 2, (9, 8), (1, 3), (2, 3), ceil=True, activation=1),
    PoolCase(2, 4, 1, (70, 96)),  # GroupNorm by blocks, several warps a plane
    PoolCase(2, 4, 2, (8, 8), mean=100.0),
    PoolCase(2, 4, 2, (8, 10), mean=100.0, kept=True),
    PoolCase(3, 6, 3, (7, 11), activation=1, kept=True),
    PoolCase(3, 5, 1, (6, 6), training=False, activation=1),
    PoolCase(2, 32, 2, (34, 34)),  # 2/11's groups and images, in one go in fp32 and 16 bits
    PoolCase(2, 34, 2, (6, 8)),  # a channel more than goes in one
    PoolCase(1, 4, 2, (8, 82), activation=1),  # and values more
]


def random_case(seed: int) -> PoolCase:
    rng = random.Random(seed)
    groups = rng.randint(1, 4)
    kernel = rng.randint(1, 4), rng.randint(1, 4)
    stride = tuple(size + rng.choice((0, 0, 0, 1, 2)) for size in kernel)
    image = tuple(rng.randint(max(2, size), 24) for size in kernel)
    return PoolCase(
        rng.randint(2, 4),
        groups * rng.randint(2, 5),
        groups,
        *(image, kernel, stride, rng.random() < 0.3, rng.random() < 0.6, rng.randrange(2)),
        kept=rng.random() < 0.5,
    )
