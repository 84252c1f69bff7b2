"""What the tests of GroupNorm and BatchNorm with steps behind them share: a library's, cases, the
truth in float64.
"""

import dataclasses
import functools
import random
from collections.abc import Callable

import torch
import torch.nn.functional as F

from generator import ops
from generator.ops.record import Earlier, Number
from generator.step_table import Step, branches
from tests.operator_cases import CASES as OPERATORS

_RECORDS = {record.name: record for record in ops.RECORDS}
_UNIT = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
_SMALL = 2.0**-24
_EPS = 1e-5


@dataclasses.dataclass(frozen=True)
class NormTail:
    """A norm's kind, as TailKind has it, and the steps behind it as PyTorch's function, too."""

    kind: str
    steps: list[Step]
    run: Callable


def _named(name: str, *arguments) -> Step:
    return _RECORDS[name].make(*arguments)


def _by(name: str, value: float) -> Step:
    return _RECORDS[name].step(Number(value), False)


_SWISH = branches([(0, _named("sigmoid")), (1, _RECORDS["mul"].step(Earlier(0), False))], {0, 1, 2})
_RELU = [_named("relu")], torch.relu
_CHAIN = (
    [_named("leaky_relu", 0.2), _by("mul", 1.5), _named("gelu"), _by("add", 0.25)],
    lambda v: F.gelu(F.leaky_relu(v, 0.2) * 1.5) + 0.25,
)
_NONE = [], lambda v: v
_TWICE = [_SWISH, _named("clamp", -0.25, 1.0)], lambda v: (torch.sigmoid(v) * v).clamp(-0.25, 1.0)
NORM_TAILS = [
    NormTail(kind, *steps)
    for kind, steps in (
        *(("kGroupNorm", steps) for steps in (_RELU, _CHAIN)),
        *(("kBatchNorm", steps) for steps in (_RELU, _TWICE)),
        *(("kCentredBatchNorm", steps) for steps in (_NONE, _TWICE)),
    )
]
LONG_NORM_TAILS = [tail for tail in NORM_TAILS if len(tail.steps) > 1]
_MISH = [_named("mish"), _named("gelu"), _named("softplus")], None
LONG_NORM_TAILS += [NormTail(kind, *_MISH) for kind in ("kGroupNorm", "kBatchNorm")]


@dataclasses.dataclass(frozen=True)
class NormTailCase:
    """A tail, by its place in `tails`, a value's shape, and what its norm has. `groups`: of
    GroupNorm, else 0; `shift`: values by which value and gradient begin behind a boundary of 16
    bytes; `spread`: how far apart the means of planes are.
    """

    place: int
    shape: tuple[int, ...]
    groups: int = 0
    dtype: torch.dtype = torch.float32
    affine: bool = True
    mean: float = 0.0
    shift: tuple[int, int] = (0, 0)
    momentum: float | None = 0.1
    tracks: bool = True
    spread: float = 0.0
    tails: tuple[NormTail, ...] = dataclasses.field(default=tuple(NORM_TAILS), repr=False)

    def __str__(self):
        parts = [getattr(self, field.name) for field in dataclasses.fields(self)[:-1]]
        return "-".join(map(str, parts)).replace(" ", "")

    @property
    def tail(self) -> NormTail:
        return self.tails[self.place]

    @property
    def operator(self) -> str:
        """Its name."""
        return OPERATORS_OF[self.tail.kind]

    def tensors(self, device="cpu") -> tuple:
        """value, weight, bias and the gradient behind the steps."""
        generator = torch.Generator().manual_seed(7)

        def normal(*shape, shift=0, mean=0.0):
            made = torch.randn(shape, generator=generator) + mean
            held = torch.empty(made.numel() + shift, dtype=self.dtype, device=device)
            held[shift:] = made.flatten().to(device, self.dtype)
            return held[shift:].view(shape)

        planes = *self.shape[:2], *[1] * (len(self.shape) - 2)
        apart = torch.randn(planes, generator=torch.Generator().manual_seed(5)) * self.spread
        value = normal(*self.shape, shift=self.shift[0], mean=self.mean + apart)
        weight, bias = (normal(self.shape[1]) for _ in range(2))
        grad = normal(*self.shape, shift=self.shift[1])
        return value, *((weight, bias) if self.affine else (None, None)), grad

    def running(self, device="cpu") -> list:
        """running_mean, running_var and num_batches of BatchNorm."""
        channels = self.shape[1]
        if not self.tracks:
            return [None, None, None]
        counted = torch.tensor(3, device=device) if self.momentum is None else None
        return [*(torch.full((channels,), x, device=device) for x in (0.5, 2.0)), counted]

    def forward(self, library, number: int, value, weight, bias, running) -> tuple:
        if self.groups:
            return library.group_norm(number, value, weight, bias, self.groups, _EPS)
        rest = *running, self.momentum or 0.0, _EPS
        return getattr(library, self.operator)(number, value, weight, bias, *rest)

    def backward(self, library, number: int, grad, value, weight, bias, maps, wanted: int) -> tuple:
        call = getattr(library, f"{self.operator}_backward", None)
        call = call or getattr(library, self.operator)
        rest = (self.groups, _EPS) if self.groups else (_EPS,)
        return call(number, grad, value, weight, bias, maps, *rest, wanted)

    def check(self, forward, backward, first: int, device="cpu") -> tuple:
        """The results of both libraries, whose number `first` is that of tails[0], against float64:
        value by value within roundings of what each is made of. Whatever is rounded ahead of the
        steps moves their result and slopes by what they differ there.
        """
        value, weight, bias, grad = self.tensors(device)
        running = self.running(device)
        number = first + self.place
        found, maps = self.forward(forward, number, value, weight, bias, running)
        wanted = 3 if self.affine else 0
        given = grad, value, weight, bias, maps, wanted
        grad_value, sums = self.backward(backward, number, *given)
        assert found.dtype == grad_value.dtype == sums.dtype == self.dtype
        assert found.shape == grad_value.shape == value.shape and found.is_contiguous()
        truth = _CentredTruth if self.tail.kind == "kCentredBatchNorm" else _Truth
        truth = truth(self, value, weight, bias, grad)
        self._within("result", found, *truth.result())
        self._within("gradient", grad_value, *truth.of_value())
        for name, got, exact in zip(("weight", "bias"), sums, truth.of_vectors(), strict=False):
            self._within(name, got, *exact)
        if not self.groups and self.tracks:
            self._check_running(running, value)
        return found, grad_value, sums

    def _within(self, name: str, found, exact, off) -> None:
        unit = _UNIT[self.dtype]
        bound = unit * (exact.abs() + off) + off + torch.finfo(self.dtype).tiny
        wrong = ~((found.double() - exact).abs() <= bound)
        assert not bool(wrong.any()), (
            *(name, str(self), int(wrong.sum())),
            *(found[wrong][:4], exact[wrong][:4], bound[wrong][:4]),
        )

    def _check_running(self, running, value) -> None:
        mean, var = (torch.full((self.shape[1],), x, dtype=torch.float64) for x in (0.5, 2.0))
        factor = 1 / 3 if self.momentum is None else self.momentum
        F.batch_norm(value.double().cpu(), mean, var, None, None, True, factor, _EPS)
        for got, exact in zip(running, (mean, var), strict=False):
            torch.testing.assert_close(got.cpu().double(), exact, rtol=3e-6, atol=1e-6)


class _Truth:
    """Of a case, in float64; each with the most by which fp32 may differ."""

    def __init__(self, case: NormTailCase, value, weight, bias, grad):
        self._case, self._run = case, case.tail.run
        like = (1, -1, *[1] * (value.dim() - 2))
        value, ones = value.double(), value.new_ones(value.shape[1]).double()
        self._weight = (ones if weight is None else weight.double()).view(like)
        bias = (0 * ones if bias is None else bias.double()).view(like)
        self._read(value)
        scaled = self._n * self._weight
        self._y = scaled + (bias if case.tail.kind != "kCentredBatchNorm" else 0)
        # Of the mean, in units of the spread; of the value, the scale and the sum.
        read = value.abs() * self._rstd
        self._off_n = _SMALL * (2 * read + 4 + 4 * self._n.abs())
        self._off = self._weight.abs() * self._off_n + _SMALL * 8 * (scaled.abs() + self._y.abs())
        self._grad = grad.double()
        # A functor's own: of fp32, or of 16 bits.
        self._own = 2.0**-21 if case.dtype == torch.float32 else 2.0**-13
        self._d = self._slope(self._y) * self._grad
        differs = self._most(self._slope) * self._grad.abs()
        self._off_d = differs + 4 * self._own * (self._grad.abs() + self._d.abs())

    def _read(self, value) -> None:
        centred = value - self._mean(value)
        self._rstd = (self._mean(centred.square()) + _EPS).rsqrt()
        self._n = centred * self._rstd

    def result(self) -> tuple:
        exact = self._run(self._y)
        return exact, self._most(self._run) + self._own * (exact.abs() + self._y.abs())

    def of_value(self) -> tuple:
        weight, d, n = self._weight, self._d * self._weight, self._n
        sums = self._mean(d), self._mean(d * n)
        exact = self._rstd * (d - sums[0] - n * sums[1])
        off = self._off_d * weight.abs() + 8 * _SMALL * d.abs()
        moved = self._mean(off * (1 + n.abs())) + self._mean(d.abs() * (self._off_n + 8 * _SMALL))
        far = (
            off
            + moved * (1 + n.abs())
            + self._off_n * sums[1].abs()
            + _SMALL * 8 * (sums[0].abs() + n.abs() * sums[1].abs())
        )
        # 1 / deviation: as far off as the values are.
        far = far + exact.abs() / self._rstd * (self._mean(self._off_n) + 8 * _SMALL)
        return exact, self._rstd * far

    def of_vectors(self) -> list[tuple]:
        axes = [0, *range(2, self._d.dim())]
        n, d = self._n, self._d
        of_weight = self._off_d * n.abs() + d.abs() * (self._off_n + 8 * _SMALL * (1 + n.abs()))
        of_bias = self._off_d + 8 * _SMALL * d.abs()
        return [
            ((d * n).sum(axes), of_weight.sum(axes)),
            (d.sum(axes), of_bias.sum(axes)),
        ]

    def _slope(self, y) -> torch.Tensor:
        leaf = y.detach().requires_grad_()
        (made,) = torch.autograd.grad(self._run(leaf).sum(), leaf)
        return made

    def _most(self, of: Callable) -> torch.Tensor:
        """By how much it differs where y is as far off as it may be."""
        here = of(self._y)
        return torch.maximum(*((of(self._y + by * self._off) - here).abs() for by in (1.5, -1.5)))

    def _mean(self, v) -> torch.Tensor:
        """Over what the norm's statistics are of."""
        groups = self._case.groups
        if not groups:
            return v.mean([0, *range(2, v.dim())], keepdim=True).expand_as(v)
        of_group = v.reshape(v.shape[0], groups, -1)
        return of_group.mean(2, keepdim=True).expand_as(of_group).reshape(v.shape)


class _CentredTruth(_Truth):
    """With deviations from the mean of each plane."""

    def _read(self, value) -> None:
        super()._read(value)
        self._of_channel = self._n
        self._n = (value - self._of_plane(value)) * self._rstd

    def of_value(self) -> tuple:
        weight, d, n, far = self._weight, self._d * self._weight, self._n, self._of_channel.abs()
        mean, product = self._of_plane(d), self._mean(d * n)
        exact = self._rstd * (d - mean - self._of_channel * product)
        off = self._off_d * weight.abs() + 8 * _SMALL * d.abs()
        off_product = self._mean(off * n.abs()) + self._mean(d.abs() * (self._off_n + 8 * _SMALL))
        most = (
            off
            + self._of_plane(off)
            + off_product * (1 + far)
            + (self._off_n + 8 * _SMALL * far) * product.abs()
            + 8 * _SMALL * mean.abs()
        )
        most = most + exact.abs() / self._rstd * (self._mean(self._off_n) + 8 * _SMALL)
        return exact, self._rstd * most

    def of_vectors(self) -> list[tuple]:
        of_weight, (of_bias, _) = super().of_vectors()
        return [of_weight, (0 * of_bias, 0 * of_bias)]

    def _of_plane(self, v) -> torch.Tensor:
        return v.mean([*range(2, v.dim())], keepdim=True).expand_as(v)


GROUP_RELU, GROUP_CHAIN, BATCH_RELU, BATCH_TWICE, CENTRED, CENTRED_TWICE = range(6)
_LOW = (torch.float16, torch.bfloat16)
CASES = [
    NormTailCase(GROUP_RELU, (2, 4, 5, 6, 8), 2),  # one block, a warp for each channel
    NormTailCase(GROUP_CHAIN, (2, 6, 3, 5, 7), 3, affine=False),  # at no vector's boundary
    NormTailCase(GROUP_CHAIN, (2, 4, 10, 33, 32), 2),  # in pieces
    NormTailCase(GROUP_CHAIN, (1, 6, 9, 35, 33), 2, mean=30.0, shift=(1, 2)),
    NormTailCase(GROUP_CHAIN, (2, 80, 2, 20), 2),  # more channels of a group than are shared
    NormTailCase(GROUP_RELU, (2, 4, 4, 6, 8), 2, shift=(3, 3)),
    NormTailCase(GROUP_CHAIN, (2, 4, 11, 12), 2),  # a warp for each channel, of fewer values
    NormTailCase(GROUP_CHAIN, (2, 4, 300), 2),
    *(NormTailCase(GROUP_CHAIN, (2, 4, 4, 6, 8), 2, dtype) for dtype in _LOW),
    *(NormTailCase(GROUP_CHAIN, (1, 4, 13, 33, 35), 1, dtype) for dtype in _LOW),
    NormTailCase(BATCH_RELU, (2, 3, 6, 8)),
    NormTailCase(BATCH_TWICE, (3, 5, 7, 9), affine=False, momentum=None),
    NormTailCase(BATCH_TWICE, (2, 2, 40, 52), shift=(1, 0)),  # several pieces a plane
    NormTailCase(BATCH_TWICE, (2, 3, 33, 65), mean=30.0),  # a block's planes, of backward
    NormTailCase(BATCH_RELU, (2, 3, 2, 65, 127), tracks=False),  # and of two parts
]
CENTRED_CASES = [
    NormTailCase(CENTRED, (2, 3, 6, 8)),
    NormTailCase(CENTRED_TWICE, (3, 5, 7, 9), affine=False, momentum=None),
    NormTailCase(CENTRED_TWICE, (2, 2, 40, 52), shift=(1, 0)),  # two threads a plane, forward
    NormTailCase(CENTRED, (5, 1, 3, 2, 127), mean=1000.0),
    NormTailCase(CENTRED, (3, 2, 9, 33), spread=100.0),  # a result small beside the deviations
    NormTailCase(CENTRED, (4, 2, 300), mean=-30.0, spread=3.0, tracks=False),
    NormTailCase(CENTRED_TWICE, (2, 2, 260, 67), spread=2.0),  # two threads a plane, backward
    NormTailCase(CENTRED, (17, 1, 65700), shift=(2, 3)),  # two warps a plane, two rounds, forward
    NormTailCase(CENTRED, (300, 1, 2, 2), mean=3.0),  # planes by turns, backward
    NormTailCase(CENTRED, (1100, 1, 3), mean=3.0, affine=False),  # and forward
]


OPERATORS_OF = {
    "kGroupNorm": "group_norm",
    "kBatchNorm": "batch_norm",
    "kCentredBatchNorm": "centred_batch_norm",
}


def random_case(seed: int, tails: tuple[NormTail, ...] = tuple(NORM_TAILS)) -> NormTailCase:
    rng = random.Random(seed)
    place = rng.randrange(len(tails))
    image = tuple(rng.randint(1, 14) for _ in range(rng.randint(1, 3)))
    image = image if len(image) > 1 else (image[0] * 97,)
    groups = rng.choice([1, 2, 3, 8]) if tails[place].kind == "kGroupNorm" else 0
    channels = max(groups, 1) * rng.randint(1, 5)
    low = rng.choice([torch.float32, torch.float32, *_LOW])
    return NormTailCase(
        place,
        (rng.randint(2, 4), channels, *image),
        groups,
        low if groups else torch.float32,
        affine=rng.random() < 0.7,
        mean=rng.choice([0.0, 3.0]),
        shift=(rng.choice([0, 0, 1, 5]), rng.choice([0, 0, 1, 3])),
        momentum=rng.choice([None, 0.1, 0.5]),
        tracks=rng.random() < 0.7,
        spread=rng.choice([0.0, 0.0, 1.0, 30.0]) if "Centred" in tails[place].kind else 0.0,
        tails=tails,
    )


def tails_of_steps(seeds: range) -> list[NormTail]:
    """Every element-wise operator without operands, then chains of several; each made so that it is
    finite, and no steeper than numbers can be compared, of values as norms make them.
    """
    known = [case for case in OPERATORS if "channel" not in case.name]
    chains = [[case] for case in known]
    chains += [random.Random(seed).sample(known, 2 + seed % 3) for seed in seeds]
    found = []
    for index, chain in enumerate(chains):
        kind = ("kGroupNorm", "kBatchNorm", "kBatchNorm", "kCentredBatchNorm")[index % 4]
        made = NormTail(kind, [case.step for case in chain], functools.partial(_run, chain))
        if not _is_tame(made.run):
            steps = [_named("abs"), _by("add", 0.5), *made.steps]
            made = NormTail(kind, steps, functools.partial(_run_of_positive, chain))
        if _is_tame(made.run):
            found.append(made)
    return found


def _run(chain, v):
    for case in chain:
        v = case.function(v, None)
    return v


def _run_of_positive(chain, v):
    return _run(chain, v.abs() + 0.5)


def _is_tame(run) -> bool:
    v = torch.linspace(-7, 7, 2001, dtype=torch.float64, requires_grad=True)
    try:
        y = run(v)
        (slope,) = torch.autograd.grad(y.sum(), v)
    except RuntimeError:  # of numbers alone
        return False
    return bool((y.abs() < 1e4).all() and (slope.abs() < 1e4).all())
