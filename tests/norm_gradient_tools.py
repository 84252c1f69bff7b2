"""What the tests of GroupNorm's gradients share: cases, the truth in float64, bounds."""

import torch

from generator import ops
from generator.ops.record import Number
from generator.step_table import Step, gradient_header

_RECORDS = {record.name: record for record in ops.RECORDS}
# By their numbers in the tests' library: steps, and PyTorch's functions.
CHAINS: list[tuple[list[Step], object]] = [
    ([], lambda v: v),
    ([_RECORDS["gelu"].make()], torch.nn.functional.gelu),
    (
        [_RECORDS["mul"].step(Number(1.5), False), _RECORDS["tanh"].make()],
        lambda v: torch.tanh(v * 1.5),
    ),
]


def chains_header() -> str:
    """The text of generated_gradient.h with CHAINS."""
    return gradient_header([steps for steps, _ in CHAINS])


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
    """Gradients of value, weight and bias in float64, and the first one's sums per channel."""
    channels, groups = case[1:3]
    value = value.double().requires_grad_()
    affine = [torch.ones(channels), torch.zeros(channels)] if weight is None else [weight, weight]
    affine = [t.double().to(value.device).detach().requires_grad_() for t in affine]
    y = torch.nn.functional.group_norm(CHAINS[chain][1](value), groups, *affine, eps)
    grads = torch.autograd.grad(y, (value, *affine), grad.double())
    return *grads, grads[0].sum((0, 2, 3))


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
    and its sums are those of as many terms.
    """
    found = backward(grad, value, weight, case[2], eps, *needs, chain)
    exact = norm_truth(case, grad, value, weight, eps, chain)
    first = _first_term(case, grad, CHAINS[chain][1](value.double()), weight, eps)
    sizes = [first, *(float(t.norm()) for t in exact[1:3]), first * case[0] ** 0.5]
    for got, wanted, size, asked in zip(found, exact, sizes, (True, *needs), strict=True):
        assert got.dtype == value.dtype
        if not asked:
            assert got.shape == (0,)
            continue
        assert float((got.double() - wanted).norm()) <= allowed * size
    return found


def _first_term(case, grad, value, weight, eps: float) -> float:
    """The size of rstd * weight * grad."""
    groups = value.double().reshape(value.shape[0], case[2], -1)
    rstd = (groups.var(2, correction=0, keepdim=True) + eps).rsqrt()
    scaled = grad.double() if weight is None else grad.double() * weight.double().view(1, -1, 1, 1)
    return float((scaled.reshape(groups.shape) * rstd).norm())
