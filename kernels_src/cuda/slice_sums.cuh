// Sums of a few rows of numbers, in fp64, in a fixed order: a thread has one of them.
//   from [rows][count] -> to [count]
#pragma once

#include "check.h"

namespace tconv {
namespace cuda {

struct SliceSumsConfig {
  static constexpr int kThreads = 128;
};

__global__ void __launch_bounds__(SliceSumsConfig::kThreads)
    slice_sums_kernel(const float* from, float* to, int64_t rows, int64_t count) {
  const int64_t at = static_cast<int64_t>(blockIdx.x) * SliceSumsConfig::kThreads + threadIdx.x;
  if (at >= count) return;
  double sum = 0.0;
  for (int64_t row = 0; row < rows; ++row) sum += from[row * count + at];
  to[at] = static_cast<float>(sum);
}

inline int64_t launch_slice_sums(const float* from, float* to, int64_t rows, int64_t count, void* stream) {
  const int64_t blocks = ceil_div(count, int64_t{SliceSumsConfig::kThreads});
  return launch_kernel(slice_sums_kernel, dim3(static_cast<unsigned>(blocks)), dim3(SliceSumsConfig::kThreads), 0,
                       stream, from, to, rows, count);
}

}  // namespace cuda
}  // namespace tconv
