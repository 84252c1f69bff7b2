"""The epilogues' own fp32 functions on a CUDA GPU against float64 and against PyTorch's."""

import ctypes
import functools

import pytest
import torch
from torch.utils.cpp_extension import load_inline

from tests.operator_cases import CASES, OPERAND, dense_sample, units
from tests.operator_library import cuda_source
from tests.solution_tools import ROOT

pytestmark = pytest.mark.gpu

SOURCE = r"""
#include "cuda/conv_group_norm_held_gelu.cuh"
#include "elementwise/mish.h"
#include "elementwise/silu.h"
#include "gelu_tanh.h"

template <int kFunction>
__global__ void apply(const float* in, float* out, int count) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const float v = in[i];
  out[i] = kFunction == 0 ? tconv::elementwise::gelu_erf<float>(v)
         : kFunction == 1 ? tconv::elementwise::tanh_(v)
         : kFunction == 2 ? tconv::elementwise::gelu_tanh(v)
         : kFunction == 3 ? tconv::elementwise::mish(v)
         : kFunction == 4 ? tconv::elementwise::silu(v)
         : kFunction == 5 ? tconv::elementwise::gelu_erf<__half>(v)
                          : tconv::elementwise::gelu_erf<tconv::cuda::held::Difference<__half>>(v);
}

extern "C" int run(int function, const float* in, float* out, int count) {
  const int blocks = (count + 255) / 256;
  if (function == 0) apply<0><<<blocks, 256>>>(in, out, count);
  if (function == 1) apply<1><<<blocks, 256>>>(in, out, count);
  if (function == 2) apply<2><<<blocks, 256>>>(in, out, count);
  if (function == 3) apply<3><<<blocks, 256>>>(in, out, count);
  if (function == 4) apply<4><<<blocks, 256>>>(in, out, count);
  if (function == 5) apply<5><<<blocks, 256>>>(in, out, count);
  if (function == 6) apply<6><<<blocks, 256>>>(in, out, count);
  return static_cast<int>(cudaGetLastError());
}
"""
FUNCTIONS = {
    "gelu": torch.nn.functional.gelu,
    "tanh": torch.tanh,
    "gelu as tanh": functools.partial(torch.nn.functional.gelu, approximate="tanh"),
    "mish": torch.nn.functional.mish,
    "silu": torch.nn.functional.silu,
}
COARSE = "gelu for 16 bits"  # ours where results are stored so
HELD = "gelu for differences in 16 bits"  # where they are held until they are normalised
IN_SOURCE = [*FUNCTIONS, COARSE, HELD]  # by their numbers there


def exact(name: str, x: torch.Tensor) -> torch.Tensor:
    """In float64; GELU without the cancellation of 1 + erf, or of 1 + tanh."""
    x = x.double()
    if name == "gelu":
        return x * 0.5 * torch.special.erfc(-x / 2**0.5)
    if name == "gelu as tanh":
        return x * torch.sigmoid((8 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))
    if name == "silu":
        return FUNCTIONS[name](x)
    if name == "mish":
        return x * torch.tanh(torch.nn.functional.softplus(x))
    return torch.tanh(x)


def build(name: str, source: str, folder) -> ctypes.CDLL:
    path = load_inline(
        name=name,
        cpp_sources=["int unused;"],
        cuda_sources=[source],
        extra_include_paths=[str(ROOT / "kernels_src")],
        build_directory=str(folder),
        is_python_module=False,
        no_implicit_headers=True,
    )
    return ctypes.CDLL(path)


@pytest.fixture(scope="module")
def apply(tmp_path_factory):
    library = build("tconv_elementwise", SOURCE, tmp_path_factory.mktemp("elementwise"))

    def run(name: str, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        pointers = ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr())
        torch.cuda.synchronize()
        assert library.run(IN_SOURCE.index(name), *pointers, x.numel()) == 0
        torch.cuda.synchronize()
        return y

    return run


def errors_in_ulp(y, right):
    """How many units in the last place of the exact value each result is off."""
    size = right.abs().clamp_min(2.0**-126)
    return (y.double() - right).abs() / torch.exp2(torch.floor(torch.log2(size)) - 23)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_at_most_2_ulp_worse_than_pytorch(apply, name):
    """In each interval of 1/8: the largest error against PyTorch's largest."""
    worse = {}
    for low in torch.arange(-6, 6, 0.125).tolist():
        x = torch.linspace(low, low + 0.125, 100_001, device="cuda")
        ours = errors_in_ulp(apply(name, x), exact(name, x)).max().item()
        pytorch = errors_in_ulp(FUNCTIONS[name](x), exact(name, x)).max().item()
        worse[low] = ours - pytorch
    print("worst interval:", max(worse.items(), key=lambda item: item[1]))
    assert max(worse.values()) <= 2, worse


@pytest.mark.parametrize("name", FUNCTIONS)
def test_small_and_large_values(apply, name):
    magnitudes = torch.exp2(torch.linspace(-100, 100, 4001, device="cuda"))
    x = torch.cat([magnitudes, -magnitudes])
    off = (apply(name, x).double() - exact(name, x)).abs()
    # GELU's exponent, up to 126, is a sum of rounded terms: 126 * 2**-24 * ln 2 twice, and the fit.
    assert (off <= 2e-5 * exact(name, x).abs() + 1e-37).all()


def test_gelu_for_16_bits(apply):
    """1/24 of fp16's rounding error as far as fp16 has the result, then bf16's rounding error."""
    x = torch.linspace(-13, 13, 1_000_001, device="cuda")
    right = exact("gelu", x)
    off = (apply(COARSE, x).double() - right).abs()
    assert (off <= torch.where(x > -5.6, 2e-5, 2.0**-8) * right.abs() + 1e-37).all()


def test_gelu_for_differences_in_16_bits(apply):
    """1/30 of fp16's rounding error of the values where ours is largest. Far in the tail less than
    what becomes of v's rounding to fp16.
    """
    x = torch.linspace(-13, 13, 1_000_001, device="cuda")
    right = exact("gelu", x)
    off = (apply(HELD, x).double() - right).abs()
    assert (off <= 1.7e-6 + 2.0**-22 * right.abs()).all()
    assert (off <= torch.where(x > -2, 1e-4, 6e-3) * right.abs())[x > -5.5].all()
    tiny = torch.linspace(-0.01, 0.01, 100_001, device="cuda")
    right = exact("gelu", tiny)
    assert ((apply(HELD, tiny).double() - right).abs() <= 1e-4 * right.abs()).all()


@pytest.mark.parametrize("name", IN_SOURCE)
def test_non_finite_as_pytorch(apply, name):
    x = torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0, 3.4e38], device="cuda")
    expected = FUNCTIONS["gelu" if name in (COARSE, HELD) else name](x)
    y = apply(name, x)
    assert torch.equal(y.isnan(), expected.isnan())
    assert torch.equal(y.nan_to_num(), expected.nan_to_num())


@pytest.fixture(scope="module")
def every_case(tmp_path_factory):
    """The cases of every element-wise operator as functions of tensors on the GPU."""
    source = cuda_source([[case.step] for case in CASES])
    library = build("tconv_operators", source, tmp_path_factory.mktemp("operators"))

    def run(case, x: torch.Tensor) -> torch.Tensor:
        y, operand = torch.empty_like(x), torch.full((1,), OPERAND, dtype=x.dtype, device="cuda")
        entry = library.run_double if x.dtype == torch.float64 else library.run_float
        x_at, y_at, operand_at = (ctypes.c_void_p(t.data_ptr()) for t in (x, y, operand))
        torch.cuda.synchronize()
        assert entry(CASES.index(case), x_at, y_at, x.numel(), operand_at) == 0
        torch.cuda.synchronize()
        return y

    return run


# Approximations of our own, held above to what PyTorch's errors are in each interval.
OWN = ("gelu", "tanh", "mish")


@pytest.mark.parametrize("case", [c for c in CASES if not c.name.startswith(OWN)], ids=str)
def test_every_operator(every_case, case):
    """fp32: 2 units in the last place from PyTorch's or from the exact result. fp64: 8 from
    PyTorch's. NaN and Inf as PyTorch has them.
    """
    x = dense_sample().cuda()
    operand = torch.tensor(OPERAND, device="cuda")
    pytorch, ours = case.function(x, operand), every_case(case, x)
    right = case.function(x.double(), operand.double())
    off = torch.minimum(units(ours, pytorch.double()), units(ours, right))
    worst = int(off.argmax())
    assert off[worst] <= 2, (x[worst], ours[worst], pytorch[worst], right[worst])
    assert torch.equal(ours.isnan(), pytorch.isnan())
    assert torch.equal(ours.isinf(), pytorch.isinf())
    wide = every_case(case, x.double())
    # On a GPU PyTorch multiplies hardsigmoid's and hardswish's by a sixth that it has in fp32.
    at = "cpu" if case.name.startswith("hards") else "cuda"
    of = torch.tensor(OPERAND, dtype=torch.float64, device=at)
    wanted = case.function(x.double().to(at), of).cuda()
    good = (wide - wanted).abs() <= 8 * 2.0**-52 * wanted.abs() + 1e-300
    good |= (wide == wanted) | (wide.isnan() & wanted.isnan())
    assert good.all(), (x[~good][0], wide[~good][0], wanted[~good][0])
