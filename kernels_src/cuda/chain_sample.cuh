// Beside chain_pack_rows.cuh: the magnitude of a g that is not in memory, from a sample of it, as gradient_scales.cuh
// has of tensors; and is any of a tensor's values not finite?
#pragma once

#include "chain_pack_rows.cuh"
#include "gradient_scales.cuh"

namespace tconv {
namespace cuda {

template <typename Args>
__global__ void __launch_bounds__(MagnitudeSampleConfig::kThreads)
    sample_chain_gradient_kernel(const __grid_constant__ Args args, int64_t step, unsigned* to) {
  using Config = MagnitudeSampleConfig;
  constexpr int kSums = 1 + Args::Inner::kSums;
  await_previous_kernels();
  unsigned largest = 0;
  const int64_t nth = static_cast<int64_t>(blockIdx.x) * Config::kThreads + threadIdx.x;
  const uint64_t hash = static_cast<uint32_t>(nth) * 2654435761u;  // as sample_magnitudes_kernel
  const int64_t at = nth * step + static_cast<int64_t>(hash * static_cast<uint64_t>(step) >> 32);
  if (at < args.num_planes * args.plane) {
    const int64_t plane = at / args.plane, sample = args.by_channels.quotient(plane);
    const auto of_channel = ChannelGradient<typename Args::Inner>::of(args, sample, plane - sample * args.channels);
    float sums[kSums];
    const float g = of_channel.template gradient<typename Args::Storage>(
        static_cast<float>(args.value[at]), static_cast<float>(args.grad[at]), args.num_groups > 0, sums);
    largest = __float_as_uint(g) & 0x7FFFFFFFu;
  }
  largest = __reduce_max_sync(0xFFFFFFFFu, largest);
  __shared__ unsigned of_block;
  if (threadIdx.x == 0) of_block = 0;
  __syncthreads();
  if (threadIdx.x % 32 == 0) atomicMax(&of_block, largest);
  __syncthreads();
  if (threadIdx.x == 0 && of_block > 0) atomicMax(to, of_block);
}

struct NotFiniteConfig {
  static constexpr int kThreads = 256;
  static constexpr int kMaxBlocks = 256;
};

template <typename Storage>
__global__ void __launch_bounds__(NotFiniteConfig::kThreads)
    note_not_finite_kernel(const Storage* values, int64_t count, int* flag) {
  bool finite = true;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * NotFiniteConfig::kThreads + threadIdx.x; i < count;
       i += static_cast<int64_t>(gridDim.x) * NotFiniteConfig::kThreads)
    finite = finite && is_finite(values[i]);
  if (!finite) *flag = 1;
}

}  // namespace cuda
}  // namespace tconv
