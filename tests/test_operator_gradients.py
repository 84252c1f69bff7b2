"""The derivatives of the element-wise operators that the kernels of gradients are made of, compiled
for the CPU, every one against PyTorch's autograd.
"""

import ctypes
import subprocess

import pytest
import torch
from torch.utils.cpp_extension import get_cxx_compiler

from generator.sources import KERNELS
from generator.step_table import gradient_header
from tests.operator_cases import CASES, OPERAND, dense_sample

_RUN = """
struct Operands { T channel_vectors[1][1]; };
template <int kChain>
void run(const T* in, const T* grad, T* out, T* of_operand, int64_t count, T operand) {
  const Operands args{{{operand}}};
  for (int64_t i = 0; i < count; ++i) {
    T sums[1] = {};
    out[i] = tconv::Chain<kChain>::template gradient<T>(
        in[i], args, 0, [&](T) { return grad[i]; }, sums);
    of_operand[i] = sums[0];
  }
}
extern "C" void run_all(int64_t which, const T* in, const T* grad, T* out, T* of_operand,
                        int64_t count, T operand) {
  switch (which) {
"""
SAMPLE = dense_sample()[::7]
DTYPES = {torch.float32: ("float", ctypes.c_float), torch.float64: ("double", ctypes.c_double)}


class StepGradients:
    """The gradient of each of CASES and of its operand, as functions of tensors."""

    def __init__(self, dtype: torch.dtype, folder):
        name, self._number = DTYPES[dtype]
        header = gradient_header([[case.step] for case in CASES])
        lines = ['#include "elementwise/slopes.h"', header, f"using T = {name};", _RUN]
        arguments = "(in, grad, out, of_operand, count, operand)"
        lines += [f"    case {i}: return run<{i}>{arguments};" for i in range(len(CASES))]
        path = folder / f"gradients_{name}.cpp"
        path.write_text("\n".join([*lines, "  }", "}"]))
        library = path.with_suffix(".so")
        flags = ["-std=c++17", "-O1", "-fPIC", "-shared", f"-I{KERNELS}"]
        subprocess.run([get_cxx_compiler(), *flags, path, "-o", library], check=True)
        self._run = ctypes.CDLL(str(library)).run_all

    def __call__(self, which: int, x: torch.Tensor, grad: torch.Tensor) -> list[torch.Tensor]:
        out = [torch.empty_like(x), torch.empty_like(x)]
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (x, grad, *out)]
        count = ctypes.c_int64(x.numel())
        self._run(ctypes.c_int64(which), *pointers, count, self._number(OPERAND))
        return out


@pytest.fixture(scope="module")
def gradients(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gradients")
    return {dtype: StepGradients(dtype, folder) for dtype in DTYPES}


def by_autograd(case, x: torch.Tensor, grad: torch.Tensor) -> list[torch.Tensor]:
    """Of the value, and of an operand of its own for each."""
    leaves = [x.clone().requires_grad_(), torch.full_like(x, OPERAND).requires_grad_()]
    found = torch.autograd.grad(case.function(*leaves), leaves, grad, allow_unused=True)
    return [torch.zeros_like(x) if f is None else f for f in found]


def assert_close(x, got, wanted, rtol: float, atol: torch.Tensor) -> None:
    assert torch.equal(got.isnan(), wanted.isnan())
    assert torch.equal(got.isinf(), wanted.isinf())
    close = (got - wanted).abs() <= rtol * wanted.abs() + atol
    finite = wanted.isfinite()
    wrong = (finite & ~close).nonzero().flatten()
    assert wrong.numel() == 0, (x[wrong[:3]], got[wrong[:3]], wanted[wrong[:3]])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_fp64(gradients, case):
    """The true derivative, at finite values where nothing overflows."""
    x = SAMPLE.double()
    x = x[x.isfinite() & (x.abs() < 500) & ((x.abs() > 1e-3) | (x == 0))]
    grad = torch.randn(x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    # PyTorch multiplies hardsigmoid's by a sixth that it has in fp32.
    allowed = 1e-7 if case.name.startswith("hardsigmoid") else 1e-10
    for got, wanted in zip(
        gradients[torch.float64](CASES.index(case), x, grad),
        by_autograd(case, x, grad),
        strict=True,
    ):
        assert_close(x, got, wanted, allowed, 1e-12 * grad.abs())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_fp32(gradients, case):
    """Close to PyTorch's derivative in fp64; what cancels in it is small beside the gradient."""
    x = SAMPLE[SAMPLE.isfinite() & (SAMPLE.abs() < 30) & ((SAMPLE.abs() > 1e-2) | (SAMPLE == 0))]
    grad = torch.randn(x.shape, generator=torch.Generator().manual_seed(3))
    exact = by_autograd(case, x.double(), grad.double())
    for got, wanted in zip(
        gradients[torch.float32](CASES.index(case), x, grad), exact, strict=True
    ):
        finite = wanted.isfinite() & (wanted.abs() < 1e38)
        assert_close(
            x[finite],
            got.double()[finite],
            wanted[finite],
            1e-5,
            2e-6 * grad.abs().double()[finite],
        )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_not_a_number(gradients, case):
    """NaN where PyTorch has it."""
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0], dtype=torch.float64)
    got = gradients[torch.float64](CASES.index(case), x, torch.ones_like(x))
    for ours, wanted in zip(got, by_autograd(case, x, torch.ones_like(x)), strict=True):
        assert torch.equal(ours.isnan(), wanted.isnan()), (ours, wanted)


_ON_A_GPU = """
#include <cmath>
#include <cstdint>
#define __CUDA_ARCH__ 900
namespace tconv { namespace cuda {
inline float reciprocal(float v) { return 1.0f / v; }
float power_of_2(float), normal_cdf(float), coarse_normal_cdf(float), tanh(float);
} }
#include "elementwise/slopes.h"
#include "elementwise/mish.h"
extern "C" void run(const float* in, float* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = tconv::elementwise::mish_slope(in[i]);
}
"""


def test_mish_s_form_on_a_gpu(tmp_path):
    """Which has one exponential: at every number, infinity and NaN."""
    path, library = tmp_path / "mish.cpp", tmp_path / "mish.so"
    path.write_text(_ON_A_GPU)
    flags = ["-std=c++17", "-O1", "-fPIC", "-shared", f"-I{KERNELS}"]
    subprocess.run([get_cxx_compiler(), *flags, path, "-o", library], check=True)
    x = dense_sample()
    got = torch.empty_like(x)
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in (x, got)]
    ctypes.CDLL(str(library)).run(*pointers, ctypes.c_int64(x.numel()))
    leaf = x.double().requires_grad_()
    (wanted,) = torch.autograd.grad(torch.nn.functional.mish(leaf).sum(), leaf)
    assert_close(x, got.double(), wanted, 1e-6, torch.full_like(wanted, 1e-7))
