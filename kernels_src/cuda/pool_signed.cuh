// Max-pooling of 2 x 2 windows before BatchNorm, as the Hopper convolution's epilogue does it (conv_transpose_sm90_pool.cuh):
// the largest value where the channel's weight is positive, the smallest where it is negative, the largest magnitude where
// it is zero. in [samples][channels][h][w] -> out [samples][channels][h / 2][w / 2].
#pragma once

#include "../problem.h"
#include "check.h"
#include "pool_window.cuh"

namespace tconv {
namespace cuda {

struct PoolSignedParams {
  const float* in;
  float* out;
  const float* weight;  // [channels] or null: all ones
  int64_t outputs, channels;
  int in_h, in_w;
  const int* only_if;  // where this holds 0, nothing is done
};

struct PoolSignedConfig {
  static constexpr int kThreads = 256;
  static constexpr int64_t kMaxBlocks = 1024;
};

__global__ void __launch_bounds__(PoolSignedConfig::kThreads) pool_signed_kernel(PoolSignedParams p) {
  if (*p.only_if == 0) return;
  const int out_w = p.in_w / 2, out_h = p.in_h / 2;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * PoolSignedConfig::kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * PoolSignedConfig::kThreads + threadIdx.x; i < p.outputs; i += stride) {
    const int64_t row_idx = i / out_w, plane_idx = row_idx / out_h;
    const int col = static_cast<int>(i - row_idx * out_w), row = static_cast<int>(row_idx - plane_idx * out_h);
    const float* in = p.in + plane_idx * p.in_h * p.in_w + static_cast<int64_t>(2 * row) * p.in_w + 2 * col;
    const float weight = p.weight != nullptr ? p.weight[plane_idx % p.channels] : 1.0f;
    const float sign = weight < 0.0f ? -1.0f : 1.0f;
    const auto value = [&](int64_t offset) { return weight == 0.0f ? fabsf(in[offset]) : in[offset] * sign; };
    p.out[i] = sign * norm::max_or_nan(norm::max_or_nan(value(0), value(1)),
                                       norm::max_or_nan(value(p.in_w), value(p.in_w + 1)));
  }
}

// `problem`: of the samples in `in`, which hold its outputs.
inline int64_t launch_pool_signed(const float* in, float* out, const float* weight, const ConvTransposeProblem& problem,
                                  const int* only_if, void* stream) {
  PoolSignedParams params;
  params.in = in;
  params.out = out;
  params.weight = weight;
  params.channels = problem.out_channels;
  params.in_h = static_cast<int>(problem.out_h), params.in_w = static_cast<int>(problem.out_w);
  params.outputs = problem.batch * problem.out_channels * (problem.out_h / 2) * (problem.out_w / 2);
  params.only_if = only_if;
  const int64_t blocks = norm::ceil_div(params.outputs, PoolSignedConfig::kThreads);
  return launch_kernel(pool_signed_kernel,
                       dim3(static_cast<unsigned>(blocks < PoolSignedConfig::kMaxBlocks ? blocks : PoolSignedConfig::kMaxBlocks)),
                       dim3(PoolSignedConfig::kThreads), 0, stream, params);
}

}  // namespace cuda
}  // namespace tconv
