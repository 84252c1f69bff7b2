"""What the tests of tails share: a library of every kind, cases, the truth in float64."""

import dataclasses
import random
from collections.abc import Callable

import torch
import torch.nn.functional as F

from generator import ops
from generator.fuse import Fused
from generator.ops.record import ChannelVector
from generator.step_table import Step, tail_header
from tests.norm_tail_tools import LONG_NORM_TAILS, NORM_TAILS
from tests.solution_tools import REFERENCES, program_of

_RECORDS = {record.name: record for record in ops.RECORDS}
_BY, _TO = (_RECORDS[name].step(ChannelVector(i), False) for i, name in enumerate(("mul", "add")))
_GELU, _SIGMOID = _RECORDS["gelu"].make(), _RECORDS["sigmoid"].make()
_UNIT = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}


@dataclasses.dataclass(frozen=True)
class Steps:
    """Behind a tail: PyTorch's functions of (value, vector 0, vector 1), how many of the vectors
    they have, and by how much at most they make an error larger than the largest of vector 0 does.
    """

    made: list[Step]
    run: Callable = lambda v, by, to: v
    vectors: int = 0
    slope: float = 1.0


NONE = Steps([])
GELU = Steps([_BY, _TO, _GELU], lambda v, by, to: F.gelu(v * by + to), 2, 1.2)
SIGMOID = Steps([_BY, _TO, _SIGMOID], lambda v, by, to: torch.sigmoid(v * by + to), 2, 0.3)
SUM = Steps([_BY, _TO], lambda v, by, to: v * by + to, 2)
# By their numbers in the tests' library: kinds as TailKind has them, and steps.
TAILS: list[tuple[str, Steps]] = [
    (kind, steps)
    for steps in (NONE, GELU, SIGMOID, SUM)
    for kind in ("kLayerNorm", "kSoftmax", "kPlaneSoftmax", "kAveragePool", "kMaxPool")
    if (kind, steps) not in (("kSoftmax", GELU), ("kAveragePool", SIGMOID), ("kMaxPool", SUM))
]

OF_NORMS = len(TAILS)  # the number of the first of NORM_TAILS, behind those
OF_REFERENCE = OF_NORMS + len(NORM_TAILS)  # and of normed_volumes.py's, behind them
_WITH_TAILS = "normed_volumes", "grouped_volumes", "volume_only", "centred_norms"  # and so on


def _tails_of(reference: str) -> list[Fused]:
    return [*program_of(REFERENCES / f"{reference}.py").tails.values()]


def first_tail_of(reference: str) -> int:
    """The number in the tests' library of the first tail of one of them."""
    ahead = _WITH_TAILS[: _WITH_TAILS.index(reference)]
    return OF_REFERENCE + sum(len(_tails_of(name)) for name in ahead)


def tails_header(gradients: bool = False) -> str:
    """The text of generated_tail.h with TAILS, NORM_TAILS and those of four references."""
    made = [(kind, steps.made) for kind, steps in TAILS]
    made += [(tail.kind, tail.steps) for tail in NORM_TAILS]
    for name in _WITH_TAILS:
        made += [(tail.entry, tail.steps) for tail in _tails_of(name)]
    return tail_header(made, gradients)


def long_tails_header(gradients: bool = True) -> str:
    """Those that take most registers, of every kind one at least."""
    apart = "kSoftmax", "kPlaneSoftmax"  # kinds of which GELU's has not the most in every kernel
    chosen = [
        (kind, steps.made)
        for kind, steps in TAILS
        if steps is GELU or (steps is SIGMOID and kind in apart)
    ]
    chosen += [(tail.kind, tail.steps) for tail in LONG_NORM_TAILS]
    return tail_header(chosen, gradients)


def drawn(layer: torch.nn.Module) -> torch.nn.Module:
    """In float64, with parameters that do something."""
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    return layer.double()


def sums_by_bit(wanted: int, made: list, columns: int, like: torch.Tensor) -> torch.Tensor:
    """Rows by bit of `wanted`, as the operators give them: NaN where one is not set."""
    sums = like.new_full((wanted.bit_length(), columns), float("nan"))
    for bit in range(wanted.bit_length()):
        if wanted >> bit & 1:
            sums[bit] = made[bit]
    return sums


def number_of(kind: str, steps: Steps = NONE) -> int:
    return TAILS.index((kind, steps))


@dataclasses.dataclass(frozen=True)
class TailCase:
    """A tail of TAILS, a value's shape, and what LayerNorm or a pool has. `shift`: values by which
    the value begins behind a boundary of 16 bytes.
    """

    number: int
    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    row: int = 0
    affine: bool = True
    window: tuple[int, int, int] = (2, 2, 2)
    mean: float = 0.0
    size: float = 1.0
    shift: int = 0
    eps: float = 1e-5

    def __str__(self):
        return "-".join(str(value) for value in dataclasses.astuple(self)).replace(" ", "")

    @property
    def kind(self) -> str:
        return TAILS[self.number][0]

    @property
    def steps(self) -> Steps:
        return TAILS[self.number][1]

    def value(self, device="cpu") -> torch.Tensor:
        generator = torch.Generator().manual_seed(7)
        made = torch.randn(self.shape, generator=generator) * self.size + self.mean
        held = torch.empty(made.numel() + self.shift, dtype=self.dtype, device=device)
        held[self.shift :] = made.flatten().to(device, self.dtype)
        return held[self.shift :].view(self.shape)

    def parameters(self, device="cpu") -> list:
        """weight and bias of LayerNorm."""
        generator = torch.Generator().manual_seed(8)
        made = [torch.randn(self.row, generator=generator) for _ in range(2)]
        return [t.to(device, self.dtype) for t in made] if self.affine else [None, None]

    def vectors(self, device="cpu") -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(9)
        made = [torch.randn(self.shape[1], generator=generator) for _ in range(self.steps.vectors)]
        return [t.to(device, self.dtype) for t in made]

    def call(self, library, value: torch.Tensor) -> torch.Tensor:
        vectors = self.vectors(value.device)
        if self.kind == "kSoftmax":
            return library.softmax(self.number, value, *vectors)
        if self.kind == "kPlaneSoftmax":
            return library.plane_softmax(self.number, value, *vectors)
        if self.kind != "kLayerNorm":
            return library.pool(self.number, value, *self.window, *vectors)
        parameters = self.parameters(value.device)
        return library.layer_norm(self.number, value, *parameters, self.eps, self.row, *vectors)

    def operator(self, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What PyTorch makes of the value in float64 ahead of the steps, and the most by which the
        same in fp32 may differ.
        """
        value = value.double()
        if self.kind == "kSoftmax":
            y = value.softmax(1)
            far = value.amax(1, keepdim=True) - value  # rounded before it is a power
            return y, y * (8 + far) * 2.0**-24
        if self.kind == "kPlaneSoftmax":
            plane = value.flatten(2)
            far = plane.amax(2, keepdim=True) - plane
            y = plane.softmax(2)
            return y.view(value.shape), (y * (12 + far) * 2.0**-24).view(value.shape)
        if self.kind == "kMaxPool":
            y = F.max_pool3d(value, self.window)
            return y, 0 * y
        if self.kind == "kAveragePool":
            y = F.avg_pool3d(value, self.window)
            count = self.window[0] * self.window[1] * self.window[2]
            return y, F.avg_pool3d(value.abs(), self.window) * (count + 1) * 2.0**-24
        affine = [None if t is None else t.double() for t in self.parameters(value.device)]
        rows = value.reshape(-1, self.row)
        y = F.layer_norm(rows, (self.row,), *affine, self.eps)
        rstd = (rows.var(1, correction=0, keepdim=True) + self.eps).rsqrt()
        # The mean's rounding, in units of the spread, which moves every value of a row.
        read = (rows.abs().amax(1, keepdim=True) * rstd).expand_as(y)
        scale = 1.0 if affine[0] is None else affine[0].abs()
        plain = F.layer_norm(rows, (self.row,), eps=self.eps).abs()
        off = scale * (4 * read + 8 * plain) + y.abs()
        return y.view(value.shape), off.view(value.shape) * 2.0**-24

    def check(self, library, device="cpu") -> torch.Tensor:
        """The result against float64, value by value: within roundings of fp32 through the steps,
        and the one at the store.
        """
        value = self.value(device)
        found = self.call(library, value)
        y, off = self.operator(value)
        like = (1, -1, *[1] * (value.dim() - 2))
        by, to = [v.double().view(like) for v in self.vectors(device)] or (1.0, 0.0)
        exact = self.steps.run(y, by, to)
        assert found.dtype == self.dtype and found.shape == exact.shape and found.is_contiguous()
        scaled = (by * y).abs() + abs(to) if self.steps.vectors else y.abs()
        through = self.steps.slope * (abs(by) * off + 6 * 2.0**-24 * scaled)
        gelu = 2.0**-15 if self.steps is GELU and self.dtype != torch.float32 else 2.0**-21
        through = through + gelu * exact.abs() if self.steps.vectors else off
        bound = _UNIT[self.dtype] * (exact.abs() + through) + through
        bound += torch.finfo(self.dtype).smallest_normal * torch.finfo(self.dtype).eps
        wrong = ~((found.double() - exact).abs() <= bound)
        assert not bool(wrong.any()), (self, int(wrong.sum()), found[wrong][:4], exact[wrong][:4])
        return found


def cases_of(kind: str, *steps: Steps) -> list[int]:
    """Numbers of tails."""
    return [
        i for i, (one, behind) in enumerate(TAILS) if one == kind and behind in (steps or [behind])
    ]


_NORM, _NORM_GELU = number_of("kLayerNorm"), number_of("kLayerNorm", GELU)
_SOFTMAX, _SOFTMAX_SIGMOID = number_of("kSoftmax"), number_of("kSoftmax", SIGMOID)
_PLANE, _PLANE_SIGMOID = number_of("kPlaneSoftmax"), number_of("kPlaneSoftmax", SIGMOID)
_AVERAGE, _AVERAGE_GELU = number_of("kAveragePool"), number_of("kAveragePool", GELU)
_MAX, _MAX_SIGMOID = number_of("kMaxPool"), number_of("kMaxPool", SIGMOID)
_LOW = (torch.float16, torch.bfloat16)
CASES = [
    *(TailCase(number, (2, 3, 4, 64), row=64) for number in cases_of("kLayerNorm")),
    *(TailCase(_NORM_GELU, (2, 3, 5, 64), dtype, row=64) for dtype in _LOW),
    TailCase(_NORM_GELU, (2, 3, 2, 5, 33), row=33),  # of no whole vectors
    TailCase(_NORM_GELU, (2, 3, 5, 64), row=64, shift=1),
    TailCase(_NORM_GELU, (1, 3, 2, 64), torch.float16, row=64, shift=3, affine=False),
    TailCase(_NORM, (1, 2, 3, 48), row=48, mean=100.0),
    TailCase(_NORM, (1, 2, 3, 48), row=48, size=1e-3),  # eps counts
    TailCase(_NORM, (2, 3, 7), row=1),
    TailCase(_NORM, (2, 3, 8), row=4),  # one lane
    TailCase(_NORM_GELU, (2, 3, 1024), row=1024),
    *(TailCase(_NORM_GELU, (1, 3, 2, 1024), dtype, row=1024) for dtype in _LOW),
    TailCase(_NORM_GELU, (1, 3, 2, 260), row=260),  # two vectors a lane, of some lanes
    TailCase(_NORM_GELU, (1, 3, 2, 516), row=516),
    TailCase(_NORM_GELU, (1, 3, 2, 600), torch.bfloat16, row=600),
    *(TailCase(_NORM_GELU, (1, 3, 2, row), row=row, shift=1) for row in (64, 100, 255, 256)),
    *(TailCase(number, (2, 5, 3, 7)) for number in cases_of("kSoftmax")),
    *(TailCase(_SOFTMAX_SIGMOID, (2, 5, 3, 3, 5), dtype) for dtype in _LOW),
    *(TailCase(_SOFTMAX_SIGMOID, (2, n, 47), size=3.0) for n in (1, 2, 16, 17, 32, 33, 64, 65)),
    *(TailCase(_SOFTMAX_SIGMOID, (1, n, 3, 11), size=3.0) for n in (128, 129, 255, 256)),
    TailCase(_SOFTMAX, (1, 24, 301), mean=200.0),  # more than a float's exponent has
    *(TailCase(number, (2, 3, 3, 7)) for number in cases_of("kPlaneSoftmax")),
    *(TailCase(_PLANE_SIGMOID, (1, 2, 9000), dtype, size=3.0) for dtype in _UNIT),  # two chunks
    *(TailCase(_PLANE_SIGMOID, (2, 2, 8193), dtype, size=3.0) for dtype in _UNIT),
    TailCase(_PLANE, (1, 2, 17, 31, 32), mean=200.0, shift=1),
    *(TailCase(number, (2, 3, 4, 6, 8)) for number in cases_of("kAveragePool")),
    *(TailCase(number, (2, 3, 4, 6, 8)) for number in cases_of("kMaxPool")),
    *(TailCase(_AVERAGE_GELU, (2, 3, 5, 7, 9), dtype, shift=1) for dtype in _LOW),
    *(TailCase(_MAX_SIGMOID, (2, 3, 5, 7, 9), dtype, shift=1) for dtype in _LOW),
    TailCase(_AVERAGE_GELU, (2, 3, 7, 8, 11), window=(3, 2, 4)),
    TailCase(_MAX_SIGMOID, (2, 3, 7, 8, 11), window=(1, 3, 5)),
    TailCase(_AVERAGE, (1, 2, 3, 4, 5), window=(3, 4, 5)),
    TailCase(_MAX, (1, 2, 3, 4, 5), window=(1, 1, 1)),
]


def random_case(seed: int) -> TailCase:
    rng = random.Random(seed)
    number = rng.randrange(len(TAILS))
    dtype = rng.choice([torch.float32, torch.float32, torch.float16, torch.bfloat16])
    more = {"shift": rng.choice([0, 0, 1, 5]), "mean": rng.choice([0.0, 0.0, 3.0])}
    more["size"] = rng.choice([1.0, 1.0, 0.01, 4.0])
    batch = rng.randint(1, 3)
    kind = TAILS[number][0]
    if kind == "kSoftmax":
        channels = rng.choice([rng.randint(1, 40), rng.randint(1, 256)])
        image = [rng.randint(1, 9) for _ in range(rng.randint(1, 3))]
        return TailCase(number, (batch, channels, *image), dtype, **more)
    channels = rng.randint(1, 7)
    if kind == "kPlaneSoftmax":
        image = [rng.randint(1, 30) for _ in range(rng.randint(1, 3))]
        return TailCase(number, (batch, channels, *image), dtype, **more)
    if kind == "kLayerNorm":
        row = rng.choice([rng.randint(1, 256), 4 * rng.randint(1, 64), 8 * rng.randint(1, 128)])
        row = row if row <= 256 or more["shift"] == 0 else 256
        image = [rng.randint(1, 4) for _ in range(rng.randint(0, 2))]
        # A row may be of several dimensions, too.
        last = [row // 2, 2] if row % 2 == 0 and rng.random() < 0.3 else [row]
        more |= {"row": row, "affine": rng.random() < 0.8, "eps": rng.choice([1e-5, 1e-3])}
        return TailCase(number, (batch, channels, *image, *last), dtype, **more)
    window = (2, 2, 2) if rng.random() < 0.5 else tuple(rng.randint(1, 4) for _ in range(3))
    image = [extent * rng.randint(1, 3) + rng.randint(0, extent - 1) for extent in window]
    return TailCase(number, (batch, channels, *image), dtype, window=window, **more)
