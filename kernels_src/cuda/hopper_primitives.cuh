// The few sm_90a instructions the Hopper kernels use, one thin wrapper each: mbarriers, bulk copies, wgmma's
// bookkeeping, register reallocation. Semantics: PTX ISA, "Asynchronous barrier", "wgmma".
#pragma once

#include <cstdint>

namespace tconv {
namespace cuda {
namespace hopper {

__device__ __forceinline__ uint32_t smem_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ __forceinline__ void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

// Makes initialised barriers visible to the asynchronous proxy.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void mbarrier_arrive_expect_bytes(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Returns once the barrier has completed the phase of this parity.
__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra finished;\n"
      "bra again;\n"
      "finished:\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// Has it?
__device__ __forceinline__ bool mbarrier_passed(uint32_t barrier, uint32_t parity) {
  uint32_t passed;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n"
      "}\n"
      : "=r"(passed)
      : "r"(barrier), "r"(parity)
      : "memory");
  return passed != 0;
}

// Copies `bytes` (a multiple of 16) from global to shared memory; completion counts on `barrier`.
__device__ __forceinline__ void bulk_load(uint32_t shared, const void* global, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
               "l"(global), "r"(bytes), "r"(barrier)
               : "memory");
}

// A read-only load that brings 256 bytes to L2: runs of pixels are longer than what a warp loads at once.
__device__ __forceinline__ uint4 load_with_neighbours(const uint4* global) {
  uint4 v;
  asm volatile("ld.global.nc.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(global));
  return v;
}
__device__ __forceinline__ uint2 load_with_neighbours(const uint2* global) {
  uint2 v;
  asm volatile("ld.global.nc.L2::256B.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(global));
  return v;
}

// Orders this thread's ordinary shared-memory stores before later reads by wgmma or bulk copies.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most kPending of this warp's committed groups are unfinished.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Keeps the compiler from moving reads of accumulators above the wait that completes them.
template <int kCount>
__device__ __forceinline__ void pin_registers(float (&values)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(values[i])::"memory");
}

// Changes this warpgroup's registers a thread from kFrom to kTo.
template <int kFrom, int kTo>
__device__ __forceinline__ void set_registers() {
  if constexpr (kTo > kFrom) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kTo));
  if constexpr (kTo < kFrom) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kTo));
}

// The same value, known to the compiler to be one for the warp: it stays in uniform registers, where descriptors must
// be.
__device__ __forceinline__ uint32_t uniform(uint32_t value) { return __reduce_or_sync(0xFFFFFFFFu, value); }

// Matrix descriptor of a K-major operand whose rows are 128 bytes in the 128-byte swizzle: 8-row groups
// 1024 bytes apart. The start may be any multiple of 128 bytes (a tap is a shifted start), because the
// hardware swizzles by absolute address bits; +32 bytes steps 16 half-precision values along K.
// Its low half holds the start in units of 16 bytes, so that steps are plain additions to it; the high half is
// constant.
__device__ __forceinline__ uint32_t descriptor_low(uint32_t shared) {
  constexpr uint32_t kLeadingByteOffset = 1u << 16;  // ignored for swizzled K-major operands
  return kLeadingByteOffset | (shared & 0x3FFFF) >> 4;
}
__device__ __forceinline__ uint64_t matrix_descriptor(uint32_t low) {
  constexpr uint32_t kSwizzle128B = 1u << 30;
  constexpr uint32_t kStrideByteOffset = 1024 >> 4;
  return static_cast<uint64_t>(kSwizzle128B | kStrideByteOffset) << 32 | low;
}
constexpr uint32_t kDescriptorStepK16 = 32 >> 4;

// The same of an operand whose rows are 32 bytes, 16 half-precision values, in the 32-byte swizzle. The start may be
// any multiple of 32 bytes.
__device__ __forceinline__ uint64_t narrow_matrix_descriptor(uint32_t low) {
  constexpr uint32_t kSwizzle32B = 3u << 30;
  constexpr uint32_t kStrideByteOffset = 8 * 32 >> 4;
  return static_cast<uint64_t>(kSwizzle32B | kStrideByteOffset) << 32 | low;
}

}  // namespace hopper
}  // namespace cuda
}  // namespace tconv
