// Copies from shared to global memory by the copy engine, in groups of the thread that asks for them (PTX ISA,
// cp.async.bulk). Who wrote the bytes fences towards its proxy first (fence_async_proxy).
#pragma once

#include "hopper_primitives.cuh"

namespace tconv {
namespace cuda {
namespace hopper {

// All of them multiples of 16.
__device__ __forceinline__ void bulk_store(void* to, uint32_t shared, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(shared), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void commit_bulk_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

// Until all groups have read shared memory.
__device__ __forceinline__ void await_bulk_reads() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(0) : "memory");
}

// Until they are in global memory.
__device__ __forceinline__ void await_bulk_stores() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(0) : "memory");
}

}  // namespace hopper
}  // namespace cuda
}  // namespace tconv
