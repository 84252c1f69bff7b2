"""The hash of machine code: what it is blind to, and what it sees. Sources of a kernel or two."""

import struct
import subprocess

import pytest

from harness.measure.machine_code_cubin import CubinError, read_cubin
from harness.measure.nvcc import compiler, nvcc

SOURCE = """
namespace first {
struct Params { int count; float scale; const float* x; };
__constant__ float table[4] = {1, 2, 3, 4};
template <typename T>
__global__ void __launch_bounds__(128) scale(Params p, T* out, long n) {
  __shared__ T staged[128];
  staged[threadIdx.x] = p.x[threadIdx.x] * p.scale + T(3.5f);
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += p.count) out[i] = staged[127 - i % 128] / table[i % 4];
}
template __global__ void scale<float>(Params, float*, long);
__global__ void other(double* out) { out[threadIdx.x] = sqrt(out[0]); }
}
"""
SAME = {
    "comment": SOURCE + "// nothing\n",
    "namespace": SOURCE.replace("namespace first", "namespace a_longer_one"),
    "kernel's name": SOURCE.replace("scale(Params", "multiply(Params").replace(
        "scale<", "multiply<"
    ),
    "anonymous namespace": SOURCE.replace("namespace first", "namespace"),
    "lines": SOURCE.replace("\n", "\n\n"),
    "host code": SOURCE + "int answer() { return 42; }\n",
}
OTHER = {
    "constant in code": SOURCE.replace("3.5f", "3.25f"),
    "__constant__ value": SOURCE.replace("{1, 2, 3, 4}", "{1, 2, 3, 5}"),
    "launch bounds": SOURCE.replace("__launch_bounds__(128)", "__launch_bounds__(256)"),
    "instruction": SOURCE.replace("sqrt(out[0])", "-sqrt(out[0])"),
    "shared memory": SOURCE.replace("staged[128]", "staged[129]"),
    "parameters": SOURCE.replace("int count; float", "int count, more; float"),
    "a kernel less": SOURCE.replace(
        "template __global__ void scale<float>(Params, float*, long);", ""
    ),
    "a kernel twice": SOURCE
    + "__global__ void again(double* out) { out[threadIdx.x] = sqrt(out[0]); }\n",
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A function from source and flags to the bytes of its cubin."""
    if compiler() is None:
        pytest.skip("no nvcc on this machine")
    folder = tmp_path_factory.mktemp("cubins")
    kept = {}

    def compile_(source: str, *flags: str) -> bytes:
        if (source, flags) not in kept:
            path = folder / f"{len(kept)}.cu"
            path.write_text(source)
            command = [nvcc(), "-std=c++17", "-arch=sm_90a", "-cubin", *flags, str(path)]
            subprocess.run([*command, "-o", str(path.with_suffix(".cubin"))], check=True)
            kept[source, flags] = path.with_suffix(".cubin").read_bytes()
        return kept[source, flags]

    return compile_


@pytest.mark.parametrize("what", SAME)
def test_names_and_text_make_no_difference(compiled, what):
    assert SAME[what] != SOURCE
    assert read_cubin(compiled(SAME[what])).digest() == read_cubin(compiled(SOURCE)).digest()


@pytest.mark.parametrize("what", OTHER)
def test_what_runs_makes_a_difference(compiled, what):
    assert OTHER[what] != SOURCE
    assert read_cubin(compiled(OTHER[what])).digest() != read_cubin(compiled(SOURCE)).digest()


def test_flags_that_change_code_make_a_difference(compiled):
    plain = read_cubin(compiled(SOURCE)).digest()
    assert read_cubin(compiled(SOURCE, "-use_fast_math")).digest() != plain
    assert read_cubin(compiled(SOURCE, "-maxrregcount=16")).digest() != plain


def test_order_of_kernels_makes_no_difference(compiled):
    one, two = (f"__global__ void k{i}(int* x) {{ x[0] = {i}; }}\n" for i in range(2))
    assert read_cubin(compiled(one + two)).digest() == read_cubin(compiled(two + one)).digest()


def test_calls_of_functions_count_by_what_is_called(compiled):
    """Relocations: a function that is not inlined, a variable, and what CUDA provides."""
    source = """
    __device__ int counter = 7;
    __device__ __noinline__ int twice(int x) { return x * 2 + counter; }
    __global__ void k(int* x) { x[0] = twice(x[1]); if (x[0] == 3) __trap(); printf("%d", x[0]); }
    """
    source = f"#include <cstdio>\n{source}"
    digest = read_cubin(compiled(source)).digest()
    renamed = source.replace("twice", "doubled").replace("counter", "c")
    assert read_cubin(compiled(renamed)).digest() == digest
    for old, new in (("x * 2", "x * 5"), ("= 7", "= 8"), ('"%d"', '"%x"')):
        assert read_cubin(compiled(source.replace(old, new))).digest() != digest


def test_kernels_are_told_one_by_one(compiled):
    found = {kernel.name: kernel for kernel in read_cubin(compiled(SOURCE)).kernels}
    assert sorted(found) == ["_ZN5first5otherEPd", "_ZN5first5scaleIfEEvNS_6ParamsEPT_l"]
    assert found["_ZN5first5scaleIfEEvNS_6ParamsEPT_l"].parameters == (16, 8, 8)
    assert found["_ZN5first5otherEPd"].parameters == (8,)
    changed = {k.name: k for k in read_cubin(compiled(OTHER["instruction"])).kernels}
    same = {name for name in found if found[name].digest == changed[name].digest}
    assert same == {"_ZN5first5scaleIfEEvNS_6ParamsEPT_l"}


def test_what_is_no_cubin(compiled):
    whole = compiled(SOURCE)
    host = whole[:0x12] + b"\x3e\x00" + whole[0x14:]  # x86-64
    for data in (b"", b"text", whole[:40], host):
        with pytest.raises(CubinError, match="cubin"):
            read_cubin(data)
    (sections,) = struct.unpack_from("<Q", whole, 0x28)  # the table of them, behind them all
    for length in range(64, sections + 64, sections // 40):
        with pytest.raises(CubinError, match="cubin"):
            read_cubin(whole[:length])
