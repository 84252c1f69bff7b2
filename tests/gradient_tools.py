"""What the tests of the convolution's gradients share: the operator's call, the truth in float64,
element-wise bounds, and gradients that hurt.
"""

import math

import torch

from tests.layer_errors import exact_conv
from tests.solution_tools import Case, assert_within, bound_factor

NAMES = ("gradient of x", "gradient of weight", "gradient of bias")
ALL = (True, True, True)


def output_gradient(case: Case, dtype=torch.float32, device="cpu", seed=5) -> torch.Tensor:
    """Normal numbers of the output's shape."""
    generator = torch.Generator().manual_seed(seed)
    shape = (case.batch, case.out_channels, *case.output_size)
    return torch.randn(shape, generator=generator).to(device, dtype)


def call(backward, case: Case, grad, x, weight, allow_tf32: bool, needs=ALL) -> tuple:
    """The operator's three results; those that are not in `needs` are empty."""
    stride, padding, output_padding, dilation, groups = case.parameters
    pairs = (*stride, *padding, *output_padding, *dilation)
    return backward(grad, x, weight, *pairs, groups, allow_tf32, *needs)


def check_output(convolve, case: Case, x, weight, bias, allow_tf32: bool) -> None:
    """The convolution's output, as backward computes it once more, within its bound."""
    stride, padding, output_padding, dilation, groups = case.parameters
    pairs = (*stride, *padding, *output_padding, *dilation)
    found = convolve(x, weight, bias, *pairs, groups, allow_tf32)
    wide = [t.detach().double() for t in (x, weight, bias)]
    count = case.in_channels // case.groups * math.prod(case.kernel)
    rounded = allow_tf32 and x.dtype == torch.float32
    factor = bound_factor(count, x.dtype, x.dtype, tf32=rounded)
    bound = factor * exact_conv(case, *(t.abs() for t in wide)) + torch.finfo(x.dtype).tiny
    assert found.dtype == x.dtype and found.is_contiguous()
    assert_within(found, exact_conv(case, *wide), bound)


def truth(case: Case, grad, x, weight) -> tuple:
    """Gradients of x, weight and bias in float64."""
    x, weight = (t.detach().double().requires_grad_() for t in (x, weight))
    bias = torch.zeros(case.out_channels, dtype=torch.double, device=x.device, requires_grad=True)
    y = exact_conv(case, x, weight, bias)
    return torch.autograd.grad(y, (x, weight, bias), grad.double())


def bounds(case: Case, grad, x, weight, *, tf32: bool) -> list:
    """Of each gradient, for any order of summation (tests/solution_tools.py, conv_bound)."""
    counts = (
        case.out_channels // case.groups * math.prod(case.kernel),
        case.batch * math.prod(case.size),
        case.batch * math.prod(case.output_size),
    )
    absolute = truth(case, grad.abs(), x.abs(), weight.abs())
    tiny = torch.finfo(x.dtype).tiny
    return [
        bound_factor(count, x.dtype, x.dtype, tf32=tf32) * a + tiny
        for count, a in zip(counts, absolute, strict=True)
    ]


def check(backward, case: Case, grad, x, weight, allow_tf32: bool, needs=ALL) -> tuple:
    """Every gradient that is asked for within its bound, the others empty; the results."""
    found = call(backward, case, grad, x, weight, allow_tf32, needs)
    rounded = allow_tf32 and x.dtype == torch.float32
    allowed = bounds(case, grad, x, weight, tf32=rounded)
    exact = truth(case, grad, x, weight)
    for name, got, wanted, bound, asked in zip(NAMES, found, exact, allowed, needs, strict=True):
        assert got.dtype == x.dtype, name
        if not asked:
            assert got.shape == (0,), name
            continue
        try:
            assert_within(got, wanted, bound)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
    return found


def _log_uniform(grad):
    exponents = torch.rand(grad.shape, generator=torch.Generator().manual_seed(1)) * 80 - 40
    return torch.copysign(torch.exp2(exponents).to(grad), grad)


def _outlier(grad):
    grad = grad * 1e-6
    grad[0, 1, 2, 3] = 1e4
    return grad


DISTRIBUTIONS = {
    "uniform": lambda grad: torch.rand(grad.shape, generator=torch.Generator().manual_seed(1)).to(
        grad
    ),
    "1e-9": lambda grad: grad * 1e-9,
    "1e8": lambda grad: grad * 1e8,
    "1e-30": lambda grad: grad * 1e-30,
    "1e30": lambda grad: grad * 1e30,
    "log_uniform": _log_uniform,
    "outlier": _outlier,
    "zeros": lambda grad: grad * 0,
}
