"""Tensors of more than 2**31 elements on a CUDA GPU. Slabs of rows are compared with float64."""

import dataclasses

import pytest
import torch

from tests.gpu_tools import forced, tf32
from tests.solution_tools import Case, assert_within, conv_bound, relative_error

pytestmark = pytest.mark.gpu

SIDE = 1024
# 32 samples of 64 x 1024 x 1024 are exactly 2**31 elements: the 33rd begins there.
BATCH, CHANNELS, IN_CHANNELS = 33, 64, 16
CASE = Case(
    batch=BATCH,
    in_channels=IN_CHANNELS,
    out_channels=CHANNELS,
    size=(SIDE, SIDE),
    kernel=(3, 3),
    padding=(1, 1),
)


@pytest.fixture(scope="module")
def operator(shelf):
    return shelf["69"].solution["_operator"]


@pytest.fixture(autouse=True)
def memory_given_back():
    torch.cuda.empty_cache()
    yield
    torch.cuda.empty_cache()


def needs_gigabytes(wanted: float):
    free = torch.cuda.mem_get_info()[0] / 1e9
    if free < wanted:
        pytest.skip(f"needs {wanted:.0f} GB of free GPU memory, here are {free:.1f}")


def parameters(case, dtype):
    """(weight, bias) of a case without making its input."""
    return dataclasses.replace(case, batch=1, size=(1, 1)).tensors(dtype, "cuda")[1:]


def assert_slabs(y, x, weight, bias, case, samples):
    """Some rows of some samples: first, middle and last ones, for a 3 x 3 kernel with padding 1."""
    height = case.size[0]
    slab = dataclasses.replace(case, padding=(0, 1))
    for sample in samples:
        for first in (0, height // 2 - 1, height - 2):
            begin, end = max(0, first - 1), min(height, first + 3)
            window = x[sample : sample + 1, :, begin:end]
            rows = slice(first - begin + 1, first - begin + 3)  # of what the window alone gives
            exact = slab.reference(window, weight, bias)[:, :, rows]
            rounded = x.dtype == torch.float32
            bound = conv_bound(slab, window, weight, bias, x.dtype, tf32=rounded)[:, :, rows]
            assert_within(y[sample : sample + 1, :, first : first + 2], exact, bound)


@pytest.mark.parametrize("kernel", ["hopper", "portable", "direct", "plain"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_output_and_strides_over_2_31(operator, dtype, kernel):
    """The input's last samples begin beyond 2**31 elements, too: a window of such a tensor."""
    needs_gigabytes(2.2 * BATCH * CHANNELS * SIDE * SIDE * dtype.itemsize / 1e9)
    with forced(kernel), tf32(True):
        weight, bias = parameters(CASE, dtype)
        wide = torch.empty((BATCH, CHANNELS, SIDE, SIDE), dtype=dtype, device="cuda")
        x = wide[:, 40 : 40 + IN_CHANNELS]
        for sample in range(BATCH):
            x[sample].normal_()
        y = operator(x, weight, bias, *CASE.parameters)
    assert y.numel() > 2**31
    assert_slabs(y, x, weight, bias, CASE, (0, 15, 31, 32))


@pytest.mark.parametrize("kernel", ["hopper", "portable", "direct", "plain"])
def test_one_sample_over_2_31(operator, kernel):
    """Channels of one sample lie more than 2**31 elements apart."""
    side = 5800
    case = dataclasses.replace(CASE, batch=1, in_channels=4, size=(side, side))
    needs_gigabytes(1.3 * CHANNELS * side * side * 2 / 1e9)
    with forced(kernel):
        weight, bias = parameters(case, torch.bfloat16)
        x = torch.randn((1, 4, side, side), dtype=torch.bfloat16, device="cuda")
        y = operator(x, weight, bias, *case.parameters)
    assert y.numel() > 2**31
    assert_slabs(y, x, weight, bias, case, (0,))


def test_group_norm_over_2_31(shelf):
    """2/19 on an output of more than 2**31 elements: samples before and behind the boundary."""
    needs_gigabytes(25)
    model, new = shelf["19"].pair()
    model.to("cuda", torch.float16), new.to("cuda", torch.float16)
    x = torch.empty((BATCH, CHANNELS, SIDE, SIDE), dtype=torch.float16, device="cuda")
    for sample in range(BATCH):
        x[sample].normal_()
    with torch.no_grad():
        y = new(x)
        assert y.numel() > 2**31
        model.double()
        for sample in (0, 31, 32):
            exact = model(x[sample : sample + 1].double())
            assert relative_error(y[sample : sample + 1], exact) <= 4e-3
