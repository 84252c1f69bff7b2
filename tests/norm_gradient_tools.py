"""What the tests of GroupNorm's gradients share: cases, the truth in float64, bounds."""

import torch

from generator import ops
from generator.masks import of_mask
from generator.ops.record import ChannelVector, Earlier, Number, WholeTensor
from generator.step_table import Step, branches, gradient_header

_RECORDS = {record.name: record for record in ops.RECORDS}
# By their numbers in the tests' library: steps, and PyTorch's functions.
CHAINS: list[tuple[list[Step], object]] = [
    ([], lambda v: v),
    ([_RECORDS["gelu"].make()], torch.nn.functional.gelu),
    (
        [
            _RECORDS["mul"].step(ChannelVector(0), False),
            _RECORDS["tanh"].make(),
            _RECORDS["add"].step(ChannelVector(1), False),
            _RECORDS["mul"].step(Number(1.5), False),
        ],
        lambda v, by, to: (torch.tanh(v * by) + to) * 1.5,
    ),
    (
        [
            branches(
                [
                    (0, _RECORDS["sigmoid"].make()),
                    (1, _RECORDS["mul"].step(Earlier(0), False)),
                    (0, _RECORDS["add"].step(ChannelVector(0), False)),
                    (2, _RECORDS["sub"].step(Earlier(3), False)),
                ],
                {0, 1, 2, 3, 4},
            ),
            _RECORDS["mul"].step(ChannelVector(1), False),
        ],
        lambda v, to, by: (torch.sigmoid(v) * v - (v + to)) * by,
    ),
]


def chain_vectors(chain: int, channels: int, dtype, device="cpu") -> list[torch.Tensor]:
    """Of a chain of CHAINS."""
    generator = torch.Generator().manual_seed(7)
    count = 2 if chain >= 2 else 0
    return [torch.randn(channels, generator=generator).to(device, dtype) for _ in range(count)]


def arguments(
    case, given: tuple, needs=(True, True, True), chain: int = 0, eps=1e-5, pad_rows=False
) -> tuple:
    """Of the operator, for `given`: (grad, value, weight)."""
    value = given[1]
    vectors = chain_vectors(chain, value.shape[1], value.dtype, value.device)
    return *given, case[2], eps, *vectors, *[None] * (4 - len(vectors)), *needs, pad_rows, chain


# Behind CHAINS, where a library has them: with operands a channel (C) and of the value's shape (T).
TENSOR_CHAINS: list[tuple[list[Step], str, object]] = [
    (
        [
            _RECORDS["mul"].step(WholeTensor(0), False),
            _RECORDS["add"].step(ChannelVector(1), False),
            _RECORDS["tanh"].make(),
            _RECORDS["sub"].step(WholeTensor(2), True),
        ],
        "TCT",
        lambda v, by, to, less: less - torch.tanh(v * by + to),
    ),
    (
        [_RECORDS["add"].step(WholeTensor(0), False), _RECORDS["softplus"].make()],
        "T",
        lambda v, to: torch.nn.functional.softplus(v + to),
    ),
    (
        [
            _RECORDS["div"].step(WholeTensor(0), False),
            _RECORDS["sigmoid"].make(),
            _RECORDS["add"].step(Number(0.5), False),
            _RECORDS["div"].step(WholeTensor(1), True),
        ],
        "TT",
        lambda v, by, over: over / (torch.sigmoid(v / by) + 0.5),
    ),
]


# Behind CHAINS, where a library has them: of a mask, and what they multiply a gradient by where the
# condition holds and where it does not.
MASKED_CHAINS: list[tuple[list[Step], tuple[float, float]]] = [
    (of_mask([_RECORDS["clamp"].make(-1.0), _RECORDS["div"].step(Number(2.0), False)]), (0.5, 0.0)),
    (of_mask([_RECORDS["leaky_relu"].make(0.25)]), (1.0, 0.25)),
]


def chains_header(counted: bool = False, tensors: bool = False, masked: bool = False) -> str:
    """The text of generated_gradient.h with CHAINS, and TENSOR_CHAINS or MASKED_CHAINS."""
    more = [steps for steps, _, _ in TENSOR_CHAINS] if tensors else []
    more += [steps for steps, _ in MASKED_CHAINS] if masked else []
    return gradient_header([*(steps for steps, _ in CHAINS), *more], counted, tensors, masked)


# batch, channels, groups, image; of a warp's planes and of a block's, of one part and of several,
# of whole vectors and not
CASES = [
    (2, 12, 3, (5, 7)),
    (3, 8, 8, (6, 10)),
    (1, 70, 2, (9, 12)),
    (2, 4, 1, (48, 50)),
    (1, 6, 2, (150, 131)),
    (2, 3, 3, (1, 2)),
    (1, 2, 1, (1, 1)),
]


def norm_case(case: tuple, dtype=torch.float32, device="cpu", mean: float = 0.0, weighted=True):
    """(gradient, value, weight) of a case; the values lie about `mean`."""
    batch, channels, _, size = case
    generator = torch.Generator().manual_seed(3)
    grad, value = (torch.randn((batch, channels, *size), generator=generator) for _ in range(2))
    weight = torch.randn(channels, generator=generator)
    made = [t.to(device, dtype) for t in (grad, value + mean, weight)]
    return (*made[:2], made[2] if weighted else None)


def norm_truth(case: tuple, grad, value, weight, eps: float, chain: int = 0) -> tuple:
    """Gradients of value, weight and bias in float64, the first one's sums per channel, and those
    of the chain's operands.
    """
    channels, groups = case[1:3]
    vectors = chain_vectors(chain, channels, value.dtype, value.device)
    value, *vectors = [t.double().detach().requires_grad_() for t in (value, *vectors)]
    affine = [torch.ones(channels), torch.zeros(channels)] if weight is None else [weight, weight]
    affine = [t.double().to(value.device).detach().requires_grad_() for t in affine]
    behind = CHAINS[chain][1](value, *(vector.view(-1, 1, 1) for vector in vectors))
    y = torch.nn.functional.group_norm(behind, groups, *affine, eps)
    found = torch.autograd.grad(y, (value, *affine, *vectors), grad.double())
    return *found[:3], found[0].sum((0, 2, 3)), found[3:]


def check_norm(
    backward,
    case,
    grad,
    value,
    weight,
    allowed: float,
    eps: float = 1e-5,
    needs: tuple[bool, bool, bool] = (True, True, True),
    chain: int = 0,
):
    """Every gradient within `allowed` of its size, those that nobody wants empty. The value's is a
    difference, of groups of few values of nearly equal numbers: there it is its first term's size,
    as of the sums of such differences.
    """
    given = grad, value, weight
    *found, of_vectors = backward(*arguments(case, given, needs, chain, eps))
    *exact, of_exact = norm_truth(case, *given, eps, chain)
    vectors = chain_vectors(chain, case[1], torch.float64, value.device)
    behind = CHAINS[chain][1](value.double(), *(vector.view(-1, 1, 1) for vector in vectors))
    first = _first_term(case, grad, behind, weight, eps) * (1.5 if vectors else 1.0)
    sizes = [first, *(float(t.norm()) for t in exact[1:3]), first * case[0] ** 0.5]
    for got, wanted, size, asked in zip(found, exact, sizes, (True, *needs), strict=True):
        assert got.dtype == value.dtype
        if not asked:
            assert got.shape == (0,)
            continue
        assert float((got.double() - wanted).norm()) <= allowed * size
    assert of_vectors.shape == (len(of_exact), case[1])
    for got, wanted in zip(of_vectors, of_exact, strict=True):
        assert float((got.double() - wanted).norm()) <= 2 * allowed * sizes[3]
    return found


def _first_term(case, grad, value, weight, eps: float) -> float:
    """The size of rstd * weight * grad."""
    groups = value.double().reshape(value.shape[0], case[2], -1)
    rstd = (groups.var(2, correction=0, keepdim=True) + eps).rsqrt()
    scaled = grad.double() if weight is None else grad.double() * weight.double().view(1, -1, 1, 1)
    return float((scaled.reshape(groups.shape) * rstd).norm())
