"""Every element-wise operator with arguments: its step, PyTorch's function, and C++ around both."""

import dataclasses
from collections.abc import Callable

import torch
import torch.nn.functional as F

from generator import ops
from generator.ops.record import Binary, ChannelVector, Number, Operand
from generator.step_table import Step

OPERAND = 1.7  # of steps that read one value per channel: in float32 as good as any
_RECORDS = {record.name: record for record in ops.RECORDS}
_VECTOR = ChannelVector(0)


@dataclasses.dataclass(frozen=True)
class OperatorCase:
    """`function(v, operand)`: PyTorch's; the operand is a tensor of one value."""

    name: str
    step: Step
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

    def __str__(self):
        return self.name


def _unary(name: str, function: Callable, *arguments, **named) -> OperatorCase:
    record = _RECORDS[name]
    shown = [*map(str, arguments), *(f"{key}={value}" for key, value in named.items())]
    step = record.make(*arguments, **named)
    return OperatorCase(
        f"{name}({', '.join(shown)})", step, lambda v, _: function(v, *arguments, **named)
    )


def _binary(name: str, operand: Operand, function: Callable, swapped: bool = False) -> OperatorCase:
    record = _RECORDS[name]
    assert isinstance(record, Binary)
    by = f"{operand.value}" if isinstance(operand, Number) else "channel"

    def compute(v, vector):
        other = operand.value if isinstance(operand, Number) else vector
        if isinstance(operand, Number) and name in ("min", "max"):
            other = torch.tensor(operand.value, device=v.device)
        return function(other, v) if swapped else function(v, other)

    shown = f"{by} {name} v" if swapped else f"v {name} {by}"
    return OperatorCase(shown, record.step(operand, swapped), compute)


def _both_ways(name: str, function: Callable) -> list[OperatorCase]:
    return [
        _binary(name, operand, function, swapped)
        for operand in (Number(0.37), Number(-3), _VECTOR)
        for swapped in (False, True)
    ]


CASES = [
    *_both_ways("add", lambda a, b: a + b),
    *_both_ways("sub", lambda a, b: a - b),
    *_both_ways("mul", lambda a, b: a * b),
    *_both_ways("div", lambda a, b: a / b),
    *(_binary("min", operand, torch.minimum) for operand in (Number(0.5), _VECTOR)),
    *(_binary("max", operand, torch.maximum) for operand in (Number(0.5), _VECTOR)),
    _binary("add", Number(float("inf")), lambda a, b: a + b),
    _binary("mul", Number(-float("inf")), lambda a, b: a * b),
    _unary("neg", torch.neg),
    _unary("abs", torch.abs),
    _unary("square", torch.square),
    _unary("sqrt", torch.sqrt),
    _unary("rsqrt", torch.rsqrt),
    _unary("reciprocal", torch.reciprocal),
    _unary("exp", torch.exp),
    _unary("log", torch.log),
    *(
        _unary("pow", torch.pow, exponent)
        for exponent in (0, 1, 2, 3, 4, -1, -2, 0.5, -0.5, 1.5, -2.5, 7, float("inf"))
    ),
    _unary("clamp", torch.clamp, -0.5, 1.25),
    _unary("clamp", torch.clamp, 1.0, -1.0),
    _unary("clamp", torch.clamp, -float("inf"), 2.0),
    _unary("clamp_min", torch.clamp_min, 0.3),
    _unary("clamp_max", torch.clamp_max, 0.3),
    _unary("relu", torch.relu),
    _unary("relu6", F.relu6),
    _unary("hardtanh", F.hardtanh, -0.75, 2.0),
    _unary("threshold", F.threshold, 0.1, -20.0),
    _unary("leaky_relu", F.leaky_relu, 0.01),
    _unary("leaky_relu", F.leaky_relu, -0.2),
    _unary("elu", F.elu, 1.0),
    _unary("elu", F.elu, 0.7),
    _unary("selu", F.selu),
    _unary("celu", F.celu, 1.0),
    _unary("celu", F.celu, 2.5),
    _unary("silu", F.silu),
    _unary("mish", F.mish),
    _unary("hardswish", F.hardswish),
    _unary("hardsigmoid", F.hardsigmoid),
    _unary("softplus", F.softplus),
    _unary("softplus", F.softplus, 2.5, 8.0),
    _unary("softplus", F.softplus, 1, 1000),
    _unary("softsign", F.softsign),
    _unary("sigmoid", torch.sigmoid),
    _unary("tanh", torch.tanh),
    _unary("gelu", F.gelu),
    _unary("gelu", F.gelu, approximate="tanh"),
]


def functors_source(chains: list[list[Step]], qualifiers: str) -> str:
    """C++ with tconv::Case<i>::apply<Acc, Storage>(v, args, channel) for the chain at i; args has
    channel_vectors.
    """
    headers = sorted({step.header for chain in chains for step in chain if step.header})
    text = "".join(f'#include "{header}"\n' for header in headers)
    text += "namespace tconv {\ntemplate <int kCase>\nstruct Case;\n"
    for index, chain in enumerate(chains):
        body = "".join(f"    {step.device}\n" for step in chain)
        text += f"""template <>
struct Case<{index}> {{
  template <typename Acc, typename Storage, typename Args>
  static {qualifiers} Acc apply(Acc v, const Args& args, int64_t channel) {{
    (void)args, (void)channel;
{body}    return v;
  }}
}};
"""
    return text + "}  // namespace tconv\n"


def dense_sample(count: int = 60_000) -> torch.Tensor:
    """fp32: the specials, each binade from the smallest denormal to the largest number with both
    signs, a dense grid where activations bend, and both neighbours of every kink.
    """
    generator = torch.Generator().manual_seed(0)
    inf = float("inf")
    special = [0.0, -0.0, inf, -inf, float("nan"), 1e-45, -1e-45, 3.4028235e38, -3.4028235e38]
    bits = torch.randint(-(2**31), 2**31, (count // 2,), generator=generator).int()
    every_binade = bits.view(torch.float32)
    near = (torch.rand(count // 4, generator=generator, dtype=torch.float64) * 24 - 12).float()
    tails = (torch.rand(count // 4, generator=generator, dtype=torch.float64) * 220 - 110).float()
    kinks = torch.tensor([-6, -3, -1, -0.75, -0.5, 0, 0.1, 0.3, 0.5, 1, 1.25, 1.7, 2, 3, 6, 20])
    kinks = torch.cat([kinks, -kinks])
    up, down = (torch.nextafter(kinks, torch.tensor(x)) for x in (inf, -inf))
    return torch.cat([torch.tensor(special), every_binade, near, tails, kinks, up, down])


def units(y: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """|y - wanted| in units in the last place of `wanted` (float64) as a float32; 0 where both are
    the same infinity or both NaN, Inf where only one is. Beyond FLT_MAX counts as Inf.
    """
    wanted = torch.where(wanted.abs() > 3.4028235677973362e38, wanted.sign() * float("inf"), wanted)
    y = y.double()
    size = wanted.abs().clamp(2.0**-126, 3.4e38)
    off = (y - wanted).abs() / torch.exp2(torch.floor(torch.log2(size)) - 23)
    same = (y == wanted) | (y.isnan() & wanted.isnan())
    return torch.where(same, 0.0, torch.nan_to_num(off, nan=float("inf")))
