"""Element-wise steps compiled alone: for the CPU, as functions of tensors, and CUDA source."""

import ctypes
import subprocess

import torch
from torch.utils.cpp_extension import get_cxx_compiler

from generator.runtime.build import _CPU_FLAGS
from generator.sources import KERNELS
from tests.operator_cases import functors_source

# By the numbers of KernelChoice: the widest vectors, AVX2, none.
VECTORS = {"auto": 0, "avx2": 6, "portable": 2}

# What a CPU's epilogue is made of, and a CUDA source's host side: PyTorch's formulas, the
# platform's functions.
SOURCES = {
    "cpu": '#include "cpu/rows.h"\n',
    "platform": """#include "elementwise.h"
namespace tconv { namespace cpu {
inline int pick_isa(int64_t) { return 0; }
template <typename T, typename Body>
void vectorised(int, const Body& body) { body(); }
} }
""",
}
_RUN = """
template <int kCase, typename T>
void apply(int64_t vectors, const T* in, T* out, int64_t count, const T* operands) {
  const auto isa = tconv::cpu::pick_isa(vectors);
  tconv::cpu::vectorised<T>(isa, [=]() __attribute__((always_inline)) {
    const struct { const T* channel_vectors[4]; } args{
        {operands, operands + 1, operands + 2, operands + 3}};
#pragma omp simd
    for (int64_t i = 0; i < count; ++i)
      out[i] = tconv::Case<kCase>::template apply<T, T>(in[i], args, 0);
  });
}
"""
_ENTRY = """
extern "C" void run_{type}(int64_t which, int64_t vectors, const {type}* in, {type}* out,
                           int64_t count, const {type}* operands) {{
  switch (which) {{ {cases} }}
}}
"""


_CUDA = """
template <int kCase, typename T>
__global__ void apply_case(const T* in, T* out, int count, const T* operand) {
  struct { const T* channel_vectors[1]; } args{{operand}};
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) out[i] = tconv::Case<kCase>::template apply<T, T>(in[i], args, 0);
}
"""
_CUDA_ENTRY = """
extern "C" __attribute__((visibility("default"))) int run_{type}(
    int which, const {type}* in, {type}* out, int count, const {type}* operand) {{
  const int blocks = (count + 255) / 256;
  switch (which) {{
{cases}  }}
  return static_cast<int>(cudaGetLastError());
}}
"""


def cuda_source(chains: list) -> str:
    """CUDA with run_float and run_double(which chain, in, out, count, its operand), all on the
    device; they return cudaGetLastError().
    """
    text = '#include "elementwise.h"\n' + functors_source(chains, "TCONV_HD") + _CUDA
    for kind in ("float", "double"):
        call = "apply_case<{0}, {1}><<<blocks, 256>>>(in, out, count, operand)"
        cases = "".join(
            f"    case {i}: {call.format(i, kind)}; break;\n" for i in range(len(chains))
        )
        text += _CUDA_ENTRY.format(type=kind, cases=cases)
    return text


class Functors:
    """Chains of steps as functions of tensors on the CPU."""

    def __init__(self, source: str, chains: list, folder):
        text = SOURCES[source] + functors_source(chains, "TCONV_INLINE")
        text = (
            "#define TCONV_INLINE inline __attribute__((always_inline))\n" * (source == "platform")
            + text
        )
        text += _RUN
        for kind in ("float", "double"):
            calls = (
                f"case {i}: return apply<{i}, {kind}>(vectors, in, out, count, operands);"
                for i in range(len(chains))
            )
            text += _ENTRY.format(type=kind, cases=" ".join(calls))
        path = folder / f"{source}.cpp"
        path.write_text(text)
        library = path.with_suffix(".so")
        flags = [*_CPU_FLAGS, "-fvisibility=default", "-fPIC", "-shared", f"-I{KERNELS}"]
        subprocess.run([get_cxx_compiler(), *flags, path, "-o", library], check=True)
        self._library = ctypes.CDLL(str(library))

    def __call__(self, which: int, x: torch.Tensor, operands, vectors: str = "auto"):
        """The chain `which` of x, of one channel whose operands these are; 16 bits as the CPU's
        half has them: widened before, rounded once behind.
        """
        wide = x.double() if x.dtype == torch.float64 else x.float()
        given = torch.zeros(4, dtype=wide.dtype)
        given[: len(operands)] = torch.as_tensor(operands, dtype=x.dtype).to(wide.dtype)
        out = torch.empty_like(wide)
        run = self._library.run_double if wide.dtype == torch.float64 else self._library.run_float
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in (wide, out)]
        number = ctypes.c_int64
        run(
            number(which),
            number(VECTORS[vectors]),
            *pointers,
            number(x.numel()),
            ctypes.c_void_p(given.data_ptr()),
        )
        return out.to(x.dtype)
