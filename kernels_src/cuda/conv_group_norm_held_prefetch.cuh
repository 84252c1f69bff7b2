// Samples of the kernel that holds a sample's outputs, brought to L2 before producers ask for them.
#pragma once

#include "conv_group_norm_held_args.cuh"

namespace tconv {
namespace cuda {
namespace held {

// This block's share of a sample: any share, because all blocks need all of it. By all lanes of a warp.
template <typename Storage>
__device__ __forceinline__ void prefetch_sample(const Args<Storage>& args, const Place& place, int sample, int lane) {
  if (sample >= args.batch || args.prefetch_bytes == 0) return;
  const Storage* const first = args.x + sample * args.x_stride_n;
  const char* const from = reinterpret_cast<const char*>(first) + (place.block * 32 + lane) * args.prefetch_bytes;
  const char* const end = reinterpret_cast<const char*>(first + args.plan.in_channels * args.x_stride_c);
  if (from + args.prefetch_bytes <= end)
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(args.prefetch_bytes) : "memory");
}

}  // namespace held
}  // namespace cuda
}  // namespace tconv
