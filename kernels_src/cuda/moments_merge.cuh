// Moments from one kernel's tiles into the layout of another's: everything of a channel into its first entry.
//   from [batch][num_from][channels] -> to [batch][num_to][channels], entries after the first empty.
// The fallback of a faster kernel runs it under the same flag as itself. One block per sample.
#pragma once

#include "../moments.h"
#include "overlapped_launch.cuh"

namespace tconv {
namespace cuda {

struct MergeMomentsArgs {
  const Moments* from;
  Moments* to;
  int64_t num_from, num_to, batch, channels;
  const int* only_if;  // where this holds 0, nothing is done
};

struct MergeMomentsConfig {
  static constexpr int kThreads = 128;
};

__global__ void __launch_bounds__(MergeMomentsConfig::kThreads) merge_moments_kernel(MergeMomentsArgs args) {
  await_previous_kernels();
  if (*args.only_if == 0) return;
  for (int64_t sample = blockIdx.x; sample < args.batch; sample += gridDim.x) {
    for (int64_t channel = threadIdx.x; channel < args.channels; channel += blockDim.x) {
      const Moments* from = args.from + sample * args.num_from * args.channels + channel;
      Moments* to = args.to + sample * args.num_to * args.channels + channel;
      MomentsF64 sum;
      for (int64_t k = 0; k < args.num_from; ++k, from += args.channels) sum.combine(from->count, from->mean, from->m2);
      *to = Moments{static_cast<float>(sum.count), static_cast<float>(sum.mean), static_cast<float>(sum.m2)};
      for (int64_t k = 1; k < args.num_to; ++k) to[k * args.channels] = Moments{0.0f, 0.0f, 0.0f};
    }
  }
}

inline int64_t launch_merge_moments(const Moments* from, int64_t num_from, Moments* to, int64_t num_to, int64_t batch,
                                    int64_t channels, const int* only_if, void* stream) {
  constexpr int64_t kMaxBlocks = 1024;
  return launch_overlapped(merge_moments_kernel, dim3(static_cast<unsigned>(batch < kMaxBlocks ? batch : kMaxBlocks)),
                           dim3(MergeMomentsConfig::kThreads), 0, stream,
                           MergeMomentsArgs{from, to, num_from, num_to, batch, channels, only_if});
}

}  // namespace cuda
}  // namespace tconv
