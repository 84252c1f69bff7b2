"""CUDA source of a solution to C++ that runs on the CPU: launches, inline assembly, dynamic shared
memory become calls of the headers beside this file.
"""

import re
from pathlib import Path

HERE = Path(__file__).resolve().parent
# The head of an inline assembly's text, and the function of instructions.h that does the same.
INSTRUCTIONS = {
    "mbarrier.init.": "mbarrier_init",
    "mbarrier.arrive.shared::cta.b64 ": "mbarrier_arrive",
    "mbarrier.arrive.expect_tx.": "mbarrier_arrive_expect",
    "{ .reg .pred done; again: mbarrier.try_wait.parity.": "mbarrier_wait",
    "{ .reg .pred done; mbarrier.test_wait.parity.": "mbarrier_passed",
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes ": "bulk_copy",
    "cp.async.bulk.global.shared::cta.bulk_group ": "bulk_store",
    "cp.async.bulk.commit_group;": "bulk_commit",
    "cp.async.bulk.wait_group.read ": "bulk_wait",
    "cp.async.bulk.wait_group ": "bulk_wait",
    "cp.async.cg.shared.global ": "cp_async",
    "cp.async.ca.shared.global ": "cp_async_sized",
    "cp.async.mbarrier.arrive.noinc.shared.b64 ": "cp_async_arrive",
    "cp.async.commit_group;": "cp_async_commit",
    "cp.async.wait_group ": "cp_async_wait",
    "ld.global.nc.L2::256B.v4.u32 ": "ld_global_v4",
    "ld.global.nc.L2::256B.v2.u32 ": "ld_global_v2",
    "ld.shared.v4.u32 ": "ld_shared_v4",
    "ld.shared.v4.f32 ": "ld_shared_v4",
    "ld.shared.v2.f32 ": "ld_shared_v2",
    "ld.shared.v2.u32 ": "ld_shared_v2",
    "ld.volatile.shared.v4.f32 ": "ld_shared_v4",
    "ld.shared.f32 ": "ld_shared",
    "ld.shared.u16 ": "ld_shared",
    "ld.shared.u32 ": "ld_shared",
    "st.shared.v4.b32 ": "st_shared_v4",
    "st.shared.v4.u32 ": "st_shared_v4",
    "st.shared.v4.f32 ": "st_shared_v4",
    "st.shared.v2.f32 ": "st_shared_v2",
    "st.shared.v2.u32 ": "st_shared_v2",
    "st.shared.f32 ": "st_shared",
    "st.shared.u32 ": "st_shared",
    "st.shared.u16 ": "st_shared",
    "st.relaxed.gpu.global.u64 ": "st_global",
    "ld.relaxed.gpu.global.u64 ": "ld_global",
    "ld.relaxed.gpu.global.v2.u64 ": "ld_global_v2",
    "{ .reg .pred p; setp.ne.u32 p, %0, 0; @p st.global.b32 ": "st_global_if_b32",
    "{ .reg .pred p; setp.ne.u32 p, %0, 0; @p st.global.b16 ": "st_global_if_b16",
    "{ .reg .pred p; setp.ne.u32 p, %0, 0; @p st.global.cs.f32 ": "st_global_if",
    "{ .reg .pred p; setp.ne.u32 p, %0, 0; @p st.global.cs.u32 ": "st_global_if",
    "{ .reg .pred p; setp.ne.u32 p, %0, 0; @p st.global.cs.u16 ": "st_global_if",
    "wgmma.commit_group.": "wgmma_commit",
    "wgmma.wait_group.": "wgmma_wait",
    "cvt.rna.tf32.f32 ": "cvt_rna_tf32",
    "ex2.approx.ftz.f32 ": "ex2_approx",
    "rcp.approx.ftz.f32 ": "rcp_approx",
    "max.NaN.f32 ": "max_nan",
    "set.gt.f32.f32 %0, %1, 0f00000000;": "set_if_positive",
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16 ": "ldmatrix",
    "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 ": "ldmatrix_transposed",
    "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 ": "stmatrix_transposed",
    "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 ": "mma_tf32",
    "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 ": "mma_f16_k8",
    "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 ": "mma_bf16_k8",
    "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 ": "mma_f16",
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 ": "mma_bf16",
}
# What does nothing here: no optimiser to hold back, one proxy, registers without end, kernels one
# after the other.
NOTHING = (
    "",
    "fence.mbarrier_init.",
    "fence.proxy.async.",
    "griddepcontrol.",
    "cp.async.bulk.prefetch.L2.global ",
    "setmaxnreg.",
    "wgmma.fence.",
    "{ .reg .pred p; setp.lt.s32 p, %0, 0; @p exit;",  # which is never true
)

_WGMMA = """template <int N>
struct Wgmma {
  template <bool kBFloat16>
  static void multiply(float (&d)[N / 2], uint64_t a, uint64_t b) {
    emu::wgmma<N, kBFloat16>(d, a, b);
  }
};
"""
_WGMMA_ONTO = """template <bool kBFloat16>
void multiply_onto(float (&d)[kN / 2], uint64_t a, uint64_t b, uint32_t onto) {
  if (onto == 0) std::fill(d, d + kN / 2, 0.0f);
  emu::wgmma<kN, kBFloat16>(d, a, b);
}
"""


def translate(source: str, exports: bool = True) -> str:
    """C++17 for g++ with this folder and CUDA's headers on the include path. `exports`: with what a
    solution's operator and the emulator's callers ask for.

    Raises ValueError for inline assembly that instructions.h does not know.
    """
    source = re.sub(  # its assembly is written by macros
        r"template <int N>\nstruct Wgmma;\n.*?(?=\n}  // namespace hopper)",
        _WGMMA,
        source,
        flags=re.DOTALL,
    )
    source = re.sub(
        r"template <int N>\nstruct PixelWgmma;\n.*?(?=\n}  // namespace pixels)",
        _WGMMA.replace("Wgmma", "PixelWgmma").replace("emu::wgmma<", "emu::wgmma_pixels<"),
        source,
        flags=re.DOTALL,
    )
    source = re.sub(
        r"#define TCONV_NAMES_176 .*?\n}\n(?=\n}  // namespace held)",
        _WGMMA_ONTO,
        source,
        flags=re.DOTALL,
    )
    # The functions of the device, not those that the host would take; __umul64hi is there too.
    source = re.sub(r"defined\(__CUDA(?:CC__|_ARCH__)\)", "1", source)
    source = re.sub(
        r"extern __shared__ (?:__align__\(\d+\) )?([\w ]+?) (\w+)\[\];",
        r"\1* const \2 = reinterpret_cast<\1*>(emu::shared_memory);",
        source,
    )
    source = re.sub(r"__shared__ ([^;]+);", _fenced, source)
    source = re.sub(
        r"__cvta_generic_to_shared\((\w+)\)",
        r"(emu::kSharedBase + (reinterpret_cast<const unsigned char*>(\1) - emu::shared_memory))",
        source,
    )
    source = re.sub(r"(?<![\w.>])(threadIdx|blockIdx|blockDim|gridDim)\b", r"emu::\1", source)
    parts, end = [], 0
    for begin, stop, call in _assemblies(source):
        parts += [source[end:begin], call]
        end = stop
    text = "".join([*parts, source[end:], "\n", _EXPORTS if exports else ""])
    return f'#define __CUDA_ARCH_FEAT_SM90_ALL 1\n#include "instructions.h"\n{text}'


def _fenced(declaration: re.Match) -> str:
    """Static shared memory with fences around each variable: blocks run one after another."""
    first, *others = re.split(r",\s*(?=\w+(?:\[|,|$))", declaration[1])
    kind, first = re.fullmatch(r"(.*\S)\s+(\w+(?:\[.*\])?)", first).groups()
    made = []
    for declarator in (first, *others):
        name, extents = re.fullmatch(r"(\w+)((?:\[.*\])?)", declarator).groups()
        made.append(
            f'static emu::Fenced<{kind}{extents}> {name}_fenced("{name}"); '
            f"auto& {name} = {name}_fenced.value();"
        )
    return " ".join(made)


def _assemblies(source: str):
    """(begin, end, what to put there) of every asm statement."""
    for found in re.finditer(r"\basm(?: volatile)?\(", source):
        end = _closing(source, found.end())
        yield found.start(), end + 1, _call(source[found.end() : end])


def _closing(source: str, at: int) -> int:
    """Where the parenthesis opened before `at` is closed, outside of string literals."""
    depth = 1
    for token in re.compile(r'"(?:[^"\\]|\\.)*"|[()]').finditer(source, at):
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        if depth == 0:
            return token.start()
    raise ValueError(f"an asm statement without an end: {source[at : at + 60]!r}")


def _call(statement: str) -> str:
    head = re.match(r'(?:\s*"(?:[^"\\]|\\.)*")+', statement)[0]
    text = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', head)).replace("\\n", " ")
    text = " ".join(text.split())
    if any(text == word if word == "" else text.startswith(word) for word in NOTHING):
        return "static_cast<void>(0)"
    names = [name for start, name in INSTRUCTIONS.items() if text.startswith(start)]
    if len(names) != 1:
        raise ValueError(f"instructions.h knows no {text!r}")
    operands = []
    for found in re.finditer(r'"[+=]?[rlfhn]"\s*\(', statement[len(head) :]):
        begin = len(head) + found.end()
        operands.append(statement[begin : _closing(statement, begin)])
    return f"emu::{names[0]}({', '.join(operands)})"


_EXPORTS = """
extern "C" {
int64_t tconv_cpu_computes_in(int64_t dtype) { return dtype; }
const char* tconv_cpu_error_string(int64_t status) { return tconv_cuda_error_string(status); }
int64_t tconv_cpu_workspace_bytes(const void* call) {
  return tconv_cuda_workspace_bytes(static_cast<decltype(emu::argument(tconv_cuda_run))>(call));
}
int64_t tconv_cpu_run(const void* call) {
  return tconv_cuda_run(static_cast<decltype(emu::argument(tconv_cuda_run))>(call));
}
void emulator_set(int64_t device, int64_t seed, int64_t detect_races, int64_t together) {
  emu::together = together != 0;
  emu::device = static_cast<int>(device);
  emu::seed = static_cast<uint32_t>(seed);
  emu::detect_races = detect_races != 0;
  emu::num_races = 0;
  emu::launched.clear();
  emu::first_races.clear();
}
void emulator_set_idle(int64_t idle) { emu::idle = idle != 0; }
int64_t emulator_races() { return emu::num_races; }
int64_t emulator_launches() { return static_cast<int64_t>(emu::launched.size()); }
int64_t emulator_launches_of(const char* part) {
  int64_t count = 0;
  for (const void* kernel : emu::launched)
    count += emu::kernel_name(kernel).find(part) != std::string::npos;
  return count;
}
const char* emulator_first_races() { return emu::first_races.c_str(); }
}
"""
