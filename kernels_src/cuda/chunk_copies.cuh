// Asynchronous copies of 16 bytes, for headers that include this within namespace tconv::cuda::hopper. Semantics: PTX
// ISA, "cp.async".
#pragma once

// Copies 16 bytes to shared memory, or zeros where they are not there.
__device__ __forceinline__ void copy_chunk(uint32_t to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}

// Arrives once this thread's copies are done.
__device__ __forceinline__ void arrive_after_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}
