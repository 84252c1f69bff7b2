"""Whether the emulator bounds shared memory as a launch asks for it, for every kind of access; and
the layers whose tiles once overstepped it.
"""

import ctypes
import subprocess

import pytest
import torch

from tests.cuda_emulator import emulator
from tests.emulated_tools import forced, needs_cuda_headers
from tests.gpu_tools import tf32
from tests.solution_tools import Case, assert_within, conv_bound

pytestmark = needs_cuda_headers

BYTES = 1000  # of dynamic shared memory: no multiple of 16, nor of a page
# What one thread does, by whether the emulator must complain, and of what.
ACCESSES = {
    "a store in place": ("st_shared(at + 996, 1u)", None),
    "a store beyond the end": (
        "st_shared(at + 1000, 1u)",
        "st.shared of 4 bytes at shared address 0x7e8, outside the block's 1000 bytes from 0x400",
    ),
    "a wide store across the end": ("st_shared_v4(at + 992, 1u, 1u, 1u, 1u)", "st.shared.v4 of 16"),
    "a load beyond the end": ("float v; ld_shared(v, at + 1000)", "ld.shared of 4 bytes at"),
    "a load before the beginning": ("float v; ld_shared(v, at - 4)", "ld.shared of 4 bytes at"),
    "a misaligned store": ("st_shared_v4(at + 8, 1u, 1u, 1u, 1u)", "which is misaligned"),
    "a copy in flight": ("cp_async(at + 992, global)", "cp.async of 16 bytes at"),
    "a misaligned copy": ("cp_async(at, global + 1)", "cp.async of 16 bytes from global"),
    "a bulk copy": (
        "mbarrier_init(at, 1); bulk_copy(at + 976, global, 32, at)",
        "cp.async.bulk of 32 bytes at",
    ),
    "a bulk store": (
        "bulk_store(const_cast<float*>(global), at + 976, 32)",
        "cp.async.bulk of 32 bytes at",
    ),
    "a misaligned bulk store": (
        "bulk_store(const_cast<float*>(global) + 1, at, 32)",
        "cp.async.bulk of 32 bytes to global",
    ),
    "an arrival at no barrier": ("mbarrier_arrive(at + 8)", "where no mbarrier was made"),
    "a barrier beyond the end": ("mbarrier_init(at + 1000, 1)", "mbarrier.init of 8 bytes at"),
    "an operand of wgmma": (
        "float d[8]; wgmma<16, false>(d, descriptor(at), descriptor(at))",
        "an operand of wgmma of 16 bytes at",
    ),
    "a write through a pointer": (
        "reinterpret_cast<volatile char*>(smem)[1008] = 1",
        "a write through a pointer at shared address 0x7f0, outside the block's 1000 bytes",
    ),
    "a read through a pointer": (
        "volatile char v = smem[5000]; (void)v",
        "through a pointer at shared address 0x1788",
    ),
    "a write through a pointer, far off": (
        "reinterpret_cast<volatile char*>(smem)[1 << 20] = 1",
        "a write through a pointer at shared address 0x100400",
    ),
    "a write just beyond the end": (
        "reinterpret_cast<volatile char*>(smem)[1000] = 1",
        "just outside the block's 1000 bytes of dynamic shared memory",
    ),
    "a write just before the beginning": (
        "reinterpret_cast<volatile char*>(smem)[-1] = 1",
        "just outside the block's 1000 bytes of dynamic shared memory",
    ),
    "a static array, in place": ("table[7] = 1.0f", None),
    "a write beyond a static array": (
        "reinterpret_cast<volatile float*>(table)[8] = 1.0f",
        "outside of the static shared memory table",
    ),
    "a write before a static array": (
        "reinterpret_cast<volatile float*>(table)[-1] = 1.0f",
        "outside of the static shared memory table",
    ),
}
WARP_WIDE = {
    "ldmatrix": "uint32_t r[4]; emu::ldmatrix(r[0], r[1], r[2], r[3], at + 496 + 16 * lane)"
}

SOURCE = """
#include <cuda_runtime.h>
__device__ inline uint64_t descriptor(uint32_t at) {{ return (at >> 4) | uint64_t(64) << 32; }}
__global__ void probe(int which, const float* global) {{
  extern __shared__ __align__(128) unsigned char smem[];
  __shared__ float table[8], other;
  const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(smem));
  const int lane = threadIdx.x % 32;
  other = table[0];
  {warp_wide}
  if (threadIdx.x != 37) return;
  using namespace emu;
  switch (which) {{
    {cases}
  }}
}}
extern "C" int64_t launch(int64_t which, int64_t bytes, int64_t allowed) {{
  alignas(16) static float global[64] = {{}};
  if (allowed > 0) {{
    const cudaError_t error = cudaFuncSetAttribute(
        probe, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(allowed));
    if (error != cudaSuccess) return error;
  }}
  cudaLaunchConfig_t config = {{}};
  config.gridDim = dim3(2);
  config.blockDim = dim3(64);
  config.dynamicSmemBytes = bytes;
  const float* const from = global;
  return cudaLaunchKernelEx(&config, probe, static_cast<int>(which), from);
}}
extern "C" const char* explain_error(int64_t error) {{
  return cudaGetErrorString(static_cast<cudaError_t>(error));
}}
"""


@pytest.fixture(scope="module")
def probe(tmp_path_factory):
    """launch(which, bytes=..., allowed=...) -> the error's text, or None."""
    cases = [f"case {i}: {{ {text}; break; }}" for i, (text, _) in enumerate(ACCESSES.values())]
    wide = [f"if (which == {100 + i}) {{ {text}; }}" for i, text in enumerate(WARP_WIDE.values())]
    source = SOURCE.format(cases="\n    ".join(cases), warp_wide="\n  ".join(wide))
    built = emulator.build_source(source, tmp_path_factory.mktemp("probe"), "-O1", exports=False)
    path = built.with_suffix(".so")
    subprocess.run(["g++", "-shared", built, "-o", path], check=True)
    library = ctypes.CDLL(str(path))
    library.explain_error.restype = ctypes.c_char_p
    library.launch.argtypes = [ctypes.c_int64] * 3
    library.explain_error.argtypes = [ctypes.c_int64]

    def launch(which, size=BYTES, allowed=0):
        error = library.launch(which, size, allowed)
        return library.explain_error(error).decode() if error else None

    return launch


@pytest.mark.parametrize("name", ACCESSES)
def test_every_access_is_bounded(probe, name):
    wanted = ACCESSES[name][1]
    said = probe(list(ACCESSES).index(name))
    assert probe(0) is None  # and the next launch is as if nothing had been
    if wanted is None:
        assert said is None
    else:
        assert wanted in said and said.endswith("of block (0, 0, 0) of probe")
        at_end = "just outside" in wanted or "static" in wanted
        assert f"by {'some thread' if at_end else 'thread 37'} of" in said


@pytest.mark.parametrize("name", WARP_WIDE)
def test_what_a_warp_does_together_is_bounded(probe, name):
    said = probe(100 + list(WARP_WIDE).index(name))
    assert said.startswith(f"{name} of 16 bytes at shared address 0x7e0, outside")


def test_more_than_48_kilobytes_must_be_allowed(probe):
    assert probe(0, 48 << 10) is None
    assert probe(0, (48 << 10) + 16) == "an error"
    assert probe(0, 100 << 10, 100 << 10) is None
    assert probe(0, 100 << 10) is None  # once and for all
    assert probe(0, 101 << 10) == "an error"
    assert probe(0, 300 << 10, 300 << 10) == "an error"  # more than the device has


# An axis with fewer outputs than its stride: some of its phases have none, but tiles, and perhaps
# more taps than the phases that have outputs.
FEWER_OUTPUTS_THAN_PHASES = {
    "the layer found on a GPU": Case(
        batch=1,
        in_channels=256,
        out_channels=64,
        size=(61, 2),
        kernel=(4, 1),
        stride=(3, 2),
        padding=(3, 1),
        output_padding=(1, 0),
        dilation=(3, 1),
        groups=2,
    ),
    "no tap where there are outputs, in rows": Case(
        batch=2, in_channels=96, size=(2, 40), kernel=(1, 5), stride=(2, 1), padding=(1, 0)
    ),
    "one tap where there are outputs, two where there are none": Case(
        batch=1, in_channels=16, size=(1, 30), kernel=(3, 3), stride=(2, 1), padding=(1, 0)
    ),
    "one output in all": Case(
        batch=1, in_channels=160, size=(2, 2), kernel=(3, 2), stride=(4, 4), padding=(3, 2)
    ),
}


@pytest.mark.parametrize("kernel", ["portable", "auto"])
@pytest.mark.parametrize("name", FEWER_OUTPUTS_THAN_PHASES)
def test_phases_without_outputs_stay_within_shared_memory(emulated_conv, name, kernel):
    case = FEWER_OUTPUTS_THAN_PHASES[name]
    assert any(out < s for out, s in zip(case.output_size, case.stride, strict=True))
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for allowed in (True, False):
            operands = case.tensors(dtype)
            with emulated_conv.on(), forced(kernel), tf32(allowed):
                y = emulated_conv.operator(*operands, *case.parameters)
            bound = conv_bound(case, *operands, dtype, tf32=allowed and dtype == torch.float32)
            assert_within(y, case.reference(*operands), bound)
