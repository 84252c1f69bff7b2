// Sums over samples and parts of planes, per channel: a block for each channel, in fp64, in a fixed order.
//   from [rows][channels] of Acc -> one number a channel
#pragma once

#include "check.h"
#include "group_norm_moments.cuh"
#include "storage.cuh"

namespace tconv {
namespace cuda {

struct ChannelSumsConfig {
  static constexpr int kThreads = 256;
};

// Of kCount arrays side by side; the same on every thread of a block of kThreads.
template <int kCount, typename Acc>
__device__ __forceinline__ void sum_channel(const Acc* const (&from)[kCount], int64_t rows, int64_t channels,
                                            int64_t channel, double (&sums)[kCount]) {
  __shared__ double scratch[ChannelSumsConfig::kThreads / 32][kCount];
  double own[kCount] = {};
#pragma unroll 4
  for (int64_t row = threadIdx.x; row < rows; row += ChannelSumsConfig::kThreads)
#pragma unroll
    for (int k = 0; k < kCount; ++k) own[k] += from[k][row * channels + channel];
  norm::block_sums(own, scratch, sums);
}

template <typename Acc, typename Storage>
__global__ void __launch_bounds__(ChannelSumsConfig::kThreads)
    channel_sums_kernel(const Acc* from, Storage* to, int64_t rows, int64_t channels) {
  const Acc* const arrays[1] = {from};
  double sums[1];
  sum_channel(arrays, rows, channels, blockIdx.x, sums);
  if (threadIdx.x == 0) to[blockIdx.x] = to_storage<Storage>(static_cast<Acc>(sums[0]));
}

// Nothing where nobody wants them.
template <typename Acc, typename Storage>
int64_t launch_channel_sums(const Acc* from, Storage* to, int64_t rows, int64_t channels, void* stream) {
  if (to == nullptr) return kOk;
  return launch_kernel(channel_sums_kernel<Acc, Storage>, dim3(static_cast<unsigned>(channels)),
                       dim3(ChannelSumsConfig::kThreads), 0, stream, from, to, rows, channels);
}

}  // namespace cuda
}  // namespace tconv
