// The instructions the tensor-core kernel is made of, one thin function each (PTX ISA, sm_80 and later).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace tconv {
namespace cuda {

// The block's dynamic shared memory, 128-byte aligned.
__device__ __forceinline__ unsigned char* dynamic_smem() {
  extern __shared__ __align__(128) unsigned char tconv_dynamic_smem[];
  return tconv_dynamic_smem;
}

__device__ __forceinline__ uint32_t smem_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Copies 16 bytes global -> shared without touching registers; both sides 16-byte aligned.
__device__ __forceinline__ void cp_async_16(uint32_t smem_dst, const void* src) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(smem_dst), "l"(src) : "memory");
}

__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }

// Waits until at most kPending of this thread's committed groups are unfinished.
template <int kPending>
__device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

__device__ __forceinline__ uint4 load_shared_16(uint32_t smem_src) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(smem_src));
  return v;
}

__device__ __forceinline__ void store_shared_16(uint32_t smem_dst, const uint4& v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"r"(smem_dst), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}

// *pointer = value where wanted, as one predicated store: a branch around each would cost more than the store.
template <typename Storage>
__device__ __forceinline__ void store_if(bool wanted, Storage* pointer, const Storage& value) {
  static_assert(sizeof(Storage) == 4 || sizeof(Storage) == 2, "one store");
  if constexpr (sizeof(Storage) == 4)
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.u32 p, %0, 0;\n@p st.global.b32 [%1], %2;\n}\n" ::"r"(static_cast<unsigned>(wanted)),
        "l"(pointer), "r"(*reinterpret_cast<const unsigned*>(&value))
        : "memory");
  else
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.u32 p, %0, 0;\n@p st.global.b16 [%1], %2;\n}\n" ::"r"(static_cast<unsigned>(wanted)),
        "l"(pointer), "h"(*reinterpret_cast<const unsigned short*>(&value))
        : "memory");
}

// Four 8 x 16-byte matrices; lane l supplies the address of row l % 8 of matrix l / 8 and receives, of each
// matrix, the 4 bytes at row l / 4, byte 4 * (l % 4).
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t smem_row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(smem_row));
}

// To nearest, ties away from zero, as cvt.rna.tf32; every NaN stays one (the sum makes it quiet, so that it does not
// hang on the bits that are dropped), infinities stay what they are.
__device__ __forceinline__ uint32_t round_to_tf32(float v) {
  const bool finite = fabsf(v) < __uint_as_float(0x7f800000u);
  return (finite ? __float_as_uint(v) + 0x1000u : __float_as_uint(v + v)) & 0xffffe000u;
}

__device__ __forceinline__ void mma_m16n8k8_tf32(float (&d)[4], const uint4& a, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_m16n8k16_f16(float (&d)[4], const uint4& a, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_m16n8k16_bf16(float (&d)[4], const uint4& a, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

}  // namespace cuda
}  // namespace tconv
