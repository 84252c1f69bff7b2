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


# Ordinary convolutions: in and out channels, image, kernel, stride, padding, dilation, groups.
CONV2D = [
    (12, 20, (9, 17), (3, 3), (1, 1), (1, 1), (1, 1), 1),
    (16, 24, (12, 15), (4, 4), (2, 2), (1, 1), (1, 1), 1),
    (24, 16, (11, 20), (3, 5), (2, 3), (2, 1), (2, 1), 4),
    (70, 66, (7, 30), (1, 7), (1, 1), (0, 3), (1, 1), 1),
]


def check_conv2d(backward, case: tuple, dtype, device, allow_tf32: bool) -> None:
    """conv2d of an image is the input gradient of the transposed convolution that goes back from
    its output, with the image for the output's gradient.
    """
    in_channels, out_channels, size, kernel, stride, padding, dilation, groups = case
    generator = torch.Generator().manual_seed(7)
    image = torch.randn((2, in_channels, *size), generator=generator).to(device, dtype)
    weight = torch.randn((out_channels, in_channels // groups, *kernel), generator=generator)
    weight = weight.to(device, dtype)
    geometry = stride, padding, dilation, groups
    exact = torch.conv2d(image.double(), weight.double(), None, *geometry)
    absolute = torch.conv2d(image.double().abs(), weight.double().abs(), None, *geometry)
    x = torch.zeros(exact.shape, dtype=dtype, device=device)
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    rest = [
        n + 2 * p - r - (m - 1) * s
        for n, p, r, m, s in zip(size, padding, reach, exact.shape[2:], stride, strict=True)
    ]
    pairs = (*stride, *padding, *rest, *dilation)
    found, _, _ = backward(image, x, weight, *pairs, groups, allow_tf32, True, False, False)
    rounded = allow_tf32 and dtype == torch.float32
    factor = bound_factor(in_channels // groups * math.prod(kernel), dtype, dtype, tf32=rounded)
    assert_within(found, exact, factor * absolute + torch.finfo(dtype).tiny)


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
