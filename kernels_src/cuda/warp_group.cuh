// A number that some warps of a block make together, lane by lane.
#pragma once

#include "group_norm_moments.cuh"

namespace tconv {
namespace cuda {

// f over what the warps of a group have for a position. `shared` has an entry for each thread.
template <typename Config, typename F>
__device__ __forceinline__ float over_group(float value, float* shared, F f) {
  shared[threadIdx.x] = value;
  __syncthreads();
  const int first = threadIdx.x / (Config::kGroup * norm::kWarp) * Config::kGroup * norm::kWarp;
  float all = shared[first + threadIdx.x % norm::kWarp];
#pragma unroll
  for (int i = 1; i < Config::kGroup; ++i) all = f(all, shared[first + i * norm::kWarp + threadIdx.x % norm::kWarp]);
  return all;
}

}  // namespace cuda
}  // namespace tconv
