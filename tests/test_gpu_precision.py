"""The TF32 contract on a CUDA GPU, on inputs that hurt: at most 1.5 times cuDNN's own TF32 error, a
bound for every element, non-finite values where PyTorch has them, the same bits twice.
"""

import pytest
import torch

from tests.gpu_tools import forced
from tests.solution_tools import Case, assert_within, conv_bound, relative_error

pytestmark = pytest.mark.gpu

KERNELS = ["auto", "portable", "hopper"]
CASES = {
    "wide": Case(
        in_channels=64, out_channels=64, kernel=(3, 7), size=(40, 120), batch=2, bias=False
    ),
    "blocks": Case(
        in_channels=96, out_channels=136, kernel=(3, 3), size=(20, 28), batch=2, bias=False
    ),
}


def log_uniform(x, low, high):
    exponents = torch.empty_like(x).uniform_(low, high)
    return torch.copysign(torch.exp2(exponents), x)


def with_outlier(x):
    x = x * 1e-3
    x[0, 0, 3, 5] = 1e6
    return x


DISTRIBUTIONS = {
    "uniform": torch.rand_like,
    "normal": lambda x: x,
    "log_uniform": lambda x: log_uniform(x, -40, 40),
    "tiny": lambda x: x * 1e-12,
    "huge": lambda x: x * 1e30,
    "small_and_large": lambda x: x * torch.where(torch.rand_like(x) < 0.5, 1e-3, 1e2),
    "outlier": with_outlier,
    "mostly_zero": lambda x: x * (torch.rand_like(x) < 0.01),
}


@pytest.fixture(scope="module")
def operator(shelf):
    return shelf["69"].solution["_operator"]


def tensors(case, name):
    torch.manual_seed(7)
    x, weight, _ = case.tensors(torch.float32, "cuda")
    return DISTRIBUTIONS[name](x), weight * 0.05


def rounded_to_tf32(values):
    """To the nearest of 11 significant bits, ties to even, as float64."""
    mantissa, exponent = values.double().frexp()
    return ((mantissa * 2**11).round() / 2**11).ldexp(exponent)


def eager(case, x, weight):
    stride, padding, output_padding, dilation, groups = case.parameters
    return torch.conv_transpose2d(
        x, weight, None, stride, padding, output_padding, groups, dilation
    )


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_no_worse_than_cudnn(operator, case, name, kernel):
    assert torch.backends.cudnn.allow_tf32
    x, weight = tensors(case, name)
    exact = case.reference(x, weight, None)
    with forced(kernel):
        ours = relative_error(operator(x, weight, None, *case.parameters), exact)
    # TF32 by its definition, and what cuDNN makes of it. On some shapes cuDNN computes in fp32
    # although TF32 is allowed; where it does use TF32 the two agree.
    rounded = case.reference(rounded_to_tf32(x), rounded_to_tf32(weight), None)
    tf32 = relative_error(rounded.float(), exact)
    cudnn = relative_error(eager(case, x, weight), exact)
    used_tf32 = cudnn > 1e-5
    assert not used_tf32 or abs(cudnn - tf32) <= 0.2 * tf32
    assert ours <= 1.5 * (cudnn if used_tf32 else tf32) + 1e-7


def elementwise_bound(case, x, weight):
    """TF32's own bound (`conv_bound`), and what fp16 containers add.

    An input below 2**-22 next to larger ones is off by at most 2**-33 (half of fp16's smallest
    subnormal, 2**-24, over the input's scale 2**8); a weight far below its output channel's largest
    by at most 2**-39 of that (the largest is brought to 2**14 or more).
    """
    bound = conv_bound(case, x, weight, None, torch.float32, tf32=True)
    bound += 2.0**-33 * case.reference(torch.ones_like(x), weight.abs(), None)
    largest = weight.abs().amax((0, 2, 3), keepdim=True).expand(weight.shape)
    bound += 2.0**-39 * case.reference(x.abs(), largest, None)
    return bound * (1 + 2.0**-10)  # products of two of these errors


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_element_within_its_bound(operator, case, name, kernel):
    x, weight = tensors(case, name)
    with forced(kernel):
        y = operator(x, weight, None, *case.parameters)
    assert_within(y, case.reference(x, weight, None), elementwise_bound(case, x, weight))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", ["log_uniform", "tiny", "huge", "mostly_zero"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_weights_that_hurt(operator, case, name, kernel):
    x, weight = tensors(case, "normal")
    weight = DISTRIBUTIONS[name](weight)
    weight[:, 1] = 0  # a channel without any, next to the others
    with forced(kernel):
        y = operator(x, weight, None, *case.parameters)
    assert_within(y, case.reference(x, weight, None), elementwise_bound(case, x, weight))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_zeros_give_zeros(operator, case, kernel):
    x, weight = tensors(case, "normal")
    with forced(kernel):
        y = operator(x * 0, weight, None, *case.parameters)
    assert y.count_nonzero() == 0


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), 3.4e38])
def test_non_finite_where_pytorch_has_them(operator, value, kernel):
    case = CASES["wide"]
    x, weight = tensors(case, "normal")
    x[1, 5, 11, 60] = value
    expected = eager(case, x, weight)
    with forced(kernel):
        y = operator(x, weight, None, *case.parameters)
    assert torch.equal(y.isfinite(), expected.isfinite())
    assert torch.equal(y.isnan(), expected.isnan())


@pytest.mark.parametrize("name", ["normal", "outlier"])
def test_two_runs_give_the_same_bits(operator, name):
    case = CASES["blocks"]
    x, weight = tensors(case, name)
    first = operator(x, weight, None, *case.parameters)
    assert torch.equal(first, operator(x, weight, None, *case.parameters))
