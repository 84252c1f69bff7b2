"""A forward's CUDA source compiled in parts, by dtype and kernels: together they are the whole."""

import ctypes
import itertools
import os
import re
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch.utils import cpp_extension

from generator.runtime import build
from generator.runtime.several_calls import _repeated
from generator.sources import KERNELS, resolve
from harness.measure import machine_code_build, machine_code_cubin
from harness.measure.machine_code_build import Built, compile_flags
from harness.measure.machine_code_calls import DEVICES, DTYPES, trace_call
from harness.measure.machine_code_cubin import Cubin, read_cubin, sha256
from harness.measure.nvcc import compiler, nvcc
from tests.builds_ahead import cuda_source_of
from tests.solution_tools import PROBLEMS

PARTS = ("fp32", "fp32_0", "fp32_1", "fp16", "fp16_0", "bf16", "bf16_0")
# By DType of kernels_src/common.h: the part that answers, and those with its Hopper kernels.
HANDED_TO = {0: ("fp32", 2), 1: ("fp32", 2), 2: ("fp16", 1), 3: ("bf16", 1)}

# ---- Compiled by nvcc ----

_LAYER = {
    **{"batch": 2, "in_channels": 64, "out_channels": 64, "groups": 1, "in_h": 40, "in_w": 40},
    **{"out_h": 42, "out_w": 46, "kernel_h": 3, "kernel_w": 7, "stride_h": 1, "stride_w": 1},
    **{"padding_h": 0, "padding_w": 0, "dilation_h": 1, "dilation_w": 1},
    **{"x": 1, "weight": 1, "bias": 0, "out": 1, "workspace": 1, "channel_vectors": 0},
    **{"num_groups": 8, "group_norm_eps": 1e-5, "group_norm_weight": 1, "group_norm_bias": 1},
    **{"use_batch_stats": 1, "batch_norm": 1, "batch_norm_eps": 1e-5},
    **{"batch_norm_weight": 1, "batch_norm_bias": 1, "pooled_h": 21, "pooled_w": 23},
    **{"pool_kernel_h": 2, "pool_kernel_w": 2, "pool_stride_h": 2, "pool_stride_w": 2},
    **{"pool_padding_h": 0, "pool_padding_w": 0, "pool_dilation_h": 1, "pool_dilation_w": 1},
}
_KERNELS = {"auto": 0, "plain": 1, "portable": 2, "hopper": 3, "direct": 4}


def _compiled(folder, name: str, text: str) -> bytes:
    source = folder / f"{name}.cu"
    source.write_text(text)
    command = [nvcc(), *compile_flags(build._CUDA_FLAGS), "--keep", f"--keep-dir={folder}"]
    run = subprocess.run(
        [*command, "-c", source, "-o", folder / f"{name}.o"], capture_output=True, text=True
    )
    assert run.returncode == 0, (run.stdout + run.stderr)[-4000:]
    return (folder / f"{name}.cubin").read_bytes()


@pytest.fixture(scope="module", params=["65", "19", "11"])  # an entry file each
def whole_and_parts(request, tmp_path_factory):
    """A problem's source compiled as one and in parts: programs of machine_code_driver.h."""
    if compiler() is None:
        pytest.skip("no nvcc on this machine")
    folder = tmp_path_factory.mktemp("parts")
    source = cuda_source_of(
        next(path for path in PROBLEMS if path.stem.startswith(f"{request.param}_"))
    )
    driver = f'\n#include "{machine_code_build._DRIVER}"\n'
    texts = {"whole": source} | build._parts(source)
    texts |= {name: texts[name] + driver for name in ("whole", "fp32")}
    with ThreadPoolExecutor() as pool:
        made = pool.map(lambda name: _compiled(folder, name, texts[name]), texts)
        codes = dict(zip(texts, made, strict=True))
    built = {}
    for name, objects in (("whole", ("whole",)), ("parts", PARTS)):
        link = [nvcc(), "-cudart", "none", *(folder / f"{part}.o" for part in objects)]
        link += [machine_code_build._RUNTIME, "-o", folder / name]
        subprocess.run(link, check=True)
        # Told apart by name: what their code is another test's matter.
        kernels = [kernel for part in objects for kernel in read_cubin(codes[part]).kernels]
        named = (replace(kernel, digest=sha256(_plain(kernel.name))) for kernel in kernels)
        built[name] = Built(Cubin(tuple(named), ""), folder / name)
    return codes, built


def _plain(name: str) -> str:
    """A mangled name without the part that it is of."""
    return re.sub(r"1[02]tconv_(?:fp32|fp16|bf16)(?:_\d)?", "5tconv", name)


@pytest.mark.sweep
def test_parts_are_the_whole(whole_and_parts):
    """Their kernels by machine code, and what calls in every dtype launch, whichever part has it:
    the same kernels with the same arguments.
    """
    codes, built = whole_and_parts
    _check_kernels(codes)
    for dtype, kernel in itertools.product(DTYPES, _KERNELS):
        if dtype == "float64" and kernel not in ("auto", "plain"):
            continue  # fp64 has one kernel
        fields = {**_LAYER, "dtype": DTYPES[dtype], "math": 0, "kernel_choice": _KERNELS[kernel]}
        told = [f"set {name} {value}" for name, value in fields.items()]
        whole, parts = (trace_call(built[name], DEVICES["nvidia-h200"], told) for name in built)
        assert whole == parts and any(line.startswith("kernel") for line in whole), (dtype, kernel)


def _check_kernels(codes: dict[str, bytes]) -> None:
    """Each is in one part, but for the few that depend on no dtype: those are in all. The dynamic
    shared memory of Hopper's kernels has static scratch, of any kernel compiled beside them, begin
    at a multiple of 1024: elsewhere it is smaller and lies at another address. By that one kernel
    of GroupNorm's comes out otherwise; of others only what instructions say of the address.
    """
    whole = {kernel.name: kernel.digest for kernel in read_cubin(codes["whole"]).kernels}
    parts = {(p, _plain(k.name)): k.digest for p in PARTS for k in read_cubin(codes[p]).kernels}
    counts = Counter(name for _, name in parts)
    assert set(counts) == set(whole)
    in_all = {name for name, count in counts.items() if count > 1}
    assert len(in_all) <= 2 and all(counts[name] == len(PARTS) for name in in_all)
    apart = {part for part, name in parts if "28conv_transpose_hopper_kernelI" in name}
    assert apart == {part for part in PARTS if "_" in part}
    held = {part for part, name in parts if "27conv_group_norm_held_kernelI" in name}
    assert held in (set(), {"fp32_1", "fp16", "bf16"})
    others = {place for place, digest in parts.items() if whole[place[1]] != digest}
    assert apart.isdisjoint(part for part, _ in others)
    aside = {name: _addresses_aside(code) for name, code in codes.items()}
    for part, name in others:
        if "26group_norm_finalise_kernelI" not in name:
            assert aside[part][name] == aside["whole"][name], (part, name)


def _addresses_aside(code: bytes) -> dict[str, list[bytes]]:
    """The instructions, without 32 bits where they have a number, of kernels with scratch."""
    reader = machine_code_cubin._Reader(code)
    sections = {section.name: section for section in reader._sections}
    found = {}
    for name, section in sections.items():
        kernel = name.removeprefix(".text.")
        if kernel != name and f".nv.shared.{kernel}" in sections:
            text = reader._bytes(section)
            starts = range(0, len(text), 16)
            found[_plain(kernel)] = [text[at : at + 4] + text[at + 8 : at + 16] for at in starts]
    return found


# ---- Handing over ----

_ENTRY = r"""
namespace tconv {
struct Call {
  struct { int64_t dtype; } conv;
  int64_t hopper;  // not a kernel of Hopper's: -1, or in which part
};
struct __half {};
struct __nv_bfloat16 {};
template <typename Storage>
int64_t number();  // as in PARTS
template <>
inline int64_t number<float>() { return 0; }
template <>
inline int64_t number<__half>() { return 3; }
template <>
inline int64_t number<__nv_bfloat16>() { return 5; }
inline int64_t part() {  // one name of each part's own
#if defined(TCONV_HOPPER_PART)
  return number<TCONV_HOPPER_STORAGE>() + 1 + TCONV_HOPPER_PART;
#elif !defined(TCONV_WITHOUT_FP32)
  return number<float>();
#elif !defined(TCONV_WITHOUT_FP16)
  return number<__half>();
#else
  return number<__nv_bfloat16>();
#endif
}
}  // namespace tconv
#ifdef TCONV_HOPPER_PART
TCONV_EXPORT int64_t tconv_cuda_hopper() { return tconv::part(); }
#else
TCONV_EXPORT int64_t TCONV_IN_PART(tconv_cuda_hopper, _0)();
TCONV_EXPORT int64_t TCONV_IN_PART(tconv_cuda_hopper, _1)();
namespace tconv {
template <typename Storage>
int64_t launch(const Call& call) {
  if (call.hopper == 0) return TCONV_IN_PART(tconv_cuda_hopper, _0)();
#if TCONV_HOPPER_PARTS == 2
  if (call.hopper == 1) return TCONV_IN_PART(tconv_cuda_hopper, _1)();
#endif
  return part();
}
TCONV_LEFT_OUT_FP32(launch<float>, const Call&)
TCONV_LEFT_OUT_FP16(launch<__half>, const Call&)
TCONV_LEFT_OUT_BF16(launch<__nv_bfloat16>, const Call&)
}  // namespace tconv
TCONV_EXPORT int64_t tconv_cuda_run(const tconv::Call* call) {
  TCONV_HAND_OVER(tconv_cuda_run, call)
  switch (call->conv.dtype) {
    case tconv::kFloat16: return tconv::launch<tconv::__half>(*call);
    case tconv::kBFloat16: return tconv::launch<tconv::__nv_bfloat16>(*call);
    default: return tconv::launch<float>(*call);
  }
}
TCONV_EXPORT int64_t tconv_cuda_workspace_bytes(const tconv::Call* call) {
  TCONV_HAND_OVER(tconv_cuda_workspace_bytes, call)
  return 100 + tconv::part();
}
#endif
"""
_CALLER = """
#include <cstdint>
#define TCONV_NAMED(name, index) name##index
#define TCONV_CALL_OF(name, index)                                                         \\
  extern "C" __attribute__((visibility("hidden")))                                         \\
  int64_t TCONV_NAMED(tconv_cuda_##name, index)(const void*);                              \\
  extern "C" __attribute__((visibility("default")))                                        \\
  int64_t TCONV_NAMED(ask_##name, index)(int64_t dtype, int64_t hopper) {{                 \\
    const int64_t call[] = {{dtype, hopper}};                                              \\
    return TCONV_NAMED(tconv_cuda_##name, index)(call);                                    \\
  }}
TCONV_CALL_OF(run, {index})
TCONV_CALL_OF(workspace_bytes, {index})
"""


def entry() -> str:
    return resolve(KERNELS / "cuda" / "dtype_parts.h", in_parts=True) + _ENTRY


@pytest.fixture
def as_cpp(monkeypatch, tmp_path):
    """Builds of CUDA sources without CUDA: g++ compiles them in PyTorch's own way."""
    real = cpp_extension.load
    asked = []

    def load(name, sources, with_cuda, extra_cuda_cflags, **options):
        assert with_cuda and extra_cuda_cflags
        asked.append(sources)
        renamed = [os.path.splitext(path)[0] + ".cpp" for path in sources]
        for old, new in zip(sources, renamed, strict=True):
            os.rename(old, new)
        return real(name, renamed, with_cuda=False, **options)

    monkeypatch.setattr(cpp_extension, "load", load)
    monkeypatch.setattr(build, "_can_build_cuda", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    return asked


@pytest.mark.parametrize("calls", [1, 2])
def test_calls_are_handed_to_the_part_of_their_dtype_and_kernel(
    as_cpp, monkeypatch, tmp_path, calls
):
    """Of one operator and of several; and one job at a time is enough."""
    monkeypatch.setenv("MAX_JOBS", "1")
    source = _repeated(entry(), range(calls)) if calls > 1 else entry()
    suffixes = [f"_{index}" for index in range(calls)] if calls > 1 else [""]
    callers = tuple(_CALLER.format(index=suffix) for suffix in suffixes)
    name = f"tconv_parts_of_{calls}"
    build._load_library(name, callers, source, in_parts=True)
    assert [os.path.basename(path) for path in as_cpp.pop()] == [
        "main.cpp",
        *(f"{part}.cu" for part in PARTS),
    ]
    (path,) = tmp_path.glob("*/*.so")
    assert {entry.name for entry in path.parent.iterdir()} == {
        "flock",
        path.name,
        f"{path.name}.sha256",
    }
    library = ctypes.CDLL(path)
    for suffix in suffixes:
        for dtype, (part, num_hopper) in HANDED_TO.items():
            number = PARTS.index(part)
            asked = [ctypes.c_int64(dtype), ctypes.c_int64(-1)]
            assert library[f"ask_run{suffix}"](*asked) == number
            assert library[f"ask_workspace_bytes{suffix}"](*asked) == 100 + number
            for hopper in range(num_hopper):
                asked[1] = ctypes.c_int64(hopper)
                assert PARTS[library[f"ask_run{suffix}"](*asked)] == f"{part}_{hopper}"
    build._load_library(name, callers, source, in_parts=True)
    assert as_cpp == []  # found whole


def test_what_a_part_leaves_out_is_refused(as_cpp, tmp_path):
    """Were a call in another dtype to reach it."""
    source = entry().replace("TCONV_HAND_OVER(tconv_cuda_run, call)", "")
    build._load_library("tconv_refusing", (_CALLER.format(index=""),), source, in_parts=True)
    (path,) = tmp_path.glob("*/*.so")
    run = ctypes.CDLL(path).ask_run
    run.restype = ctypes.c_int64
    found = [run(ctypes.c_int64(dtype), ctypes.c_int64(-1)) for dtype in (0, 2, 3)]
    assert found == [0, -1, -1]  # kUnsupportedDType


def test_a_part_that_does_not_compile_is_told_and_leaves_nothing(as_cpp, tmp_path):
    bad = '#if !defined(TCONV_WITHOUT_FP16)\n#error "no fp16 here"\n#endif\n'
    with pytest.raises(RuntimeError, match="no fp16 here"):
        build._load_library("tconv_failing", ("",), entry() + bad, in_parts=True)
    (folder,) = tmp_path.iterdir()
    assert [path.name for path in folder.iterdir()] == ["flock"]
