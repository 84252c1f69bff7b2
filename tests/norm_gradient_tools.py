"""What the tests of GroupNorm's gradients share: cases, the truth in float64, bounds."""

import torch

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


def norm_truth(case: tuple, grad, value, weight, eps: float) -> tuple:
    """Gradients of value, weight and bias in float64."""
    channels, groups = case[1:3]
    value = value.double().requires_grad_()
    affine = [torch.ones(channels), torch.zeros(channels)] if weight is None else [weight, weight]
    affine = [t.double().to(value.device).detach().requires_grad_() for t in affine]
    y = torch.nn.functional.group_norm(value, groups, *affine, eps)
    return torch.autograd.grad(y, (value, *affine), grad.double())


def check_norm(backward, case, grad, value, weight, allowed: float, eps=1e-5, needs=(True, True)):
    """Every gradient within `allowed` of its size, those that nobody wants empty. The value's is a
    difference, of groups of few values of nearly equal numbers: there it is its first term's size.
    """
    found = backward(grad, value, weight, case[2], eps, *needs)
    exact = norm_truth(case, grad, value, weight, eps)
    sizes = [_first_term(case, grad, value, weight, eps), *(float(t.norm()) for t in exact[1:])]
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
