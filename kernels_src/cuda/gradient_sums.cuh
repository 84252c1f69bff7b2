// Second stage of sums over pixels: partial sums, one after the other in a fixed order, into the gradient.
//   from [num_parts][count] of Acc -> to [count]
#pragma once

#include "check.h"
#include "storage.cuh"

namespace tconv {
namespace cuda {

template <typename Storage>
__device__ __forceinline__ bool is_finite(Storage v) {
  const auto wide = static_cast<typename StorageTraits<Storage>::Acc>(v);
  return wide - wide == 0;
}

struct GradientSumsConfig {
  static constexpr int kThreads = 256;
  static constexpr int kMaxBlocks = 4096;
};

// fp32 sums are added up in fp64: there are few of them, and the error of what is one long sum then lies in the parts
// alone.
template <typename Acc, typename Storage>
__global__ void __launch_bounds__(GradientSumsConfig::kThreads)
    sum_gradient_parts_kernel(const Acc* from, Storage* to, int64_t num_parts, int64_t count) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    double sum = 0.0;
    for (int64_t part = 0; part < num_parts; ++part) sum += from[part * count + i];
#ifdef TCONV_WALKS_DEPTH
    to[i] = to_storage<Storage>(static_cast<typename StorageTraits<Storage>::Acc>(sum));
#else
    to[i] = to_storage<Storage>(static_cast<Acc>(sum));
#endif
  }
}

template <typename Acc, typename Storage>
int64_t launch_sum_gradient_parts(const Acc* from, Storage* to, int64_t num_parts, int64_t count, void* stream) {
  const int64_t blocks = (count + GradientSumsConfig::kThreads - 1) / GradientSumsConfig::kThreads;
  return launch_kernel(
      sum_gradient_parts_kernel<Acc, Storage>,
      dim3(static_cast<unsigned>(blocks < GradientSumsConfig::kMaxBlocks ? blocks : GradientSumsConfig::kMaxBlocks)),
      dim3(GradientSumsConfig::kThreads), 0, stream, from, to, num_parts, count);
}

}  // namespace cuda
}  // namespace tconv
