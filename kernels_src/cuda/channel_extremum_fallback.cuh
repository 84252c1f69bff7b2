// The extremum over channels in strict fp32, where the Hopper kernel's fp16 containers cannot hold the operands.
// Launched behind that kernel over the same result, it does nothing while the guard is down; so it is one launch
// without scratch memory, and simple rather than fast: a thread computes every channel of its position, one by one.
#pragma once

#include "channel_extremum_order.cuh"
#include "conv_transpose_plain.cuh"
#include "overlapped_launch.cuh"

namespace tconv {
namespace cuda {

struct ExtremumFallbackConfig {
  static constexpr int kThreads = 256;
  static constexpr int kBlocksPerSm = 2;
};

struct ExtremumFallbackArgs {
  PlainArgs<float> conv;  // out: [batch][out_h][out_w]
  FastDivisor64 by_out_h;
  int64_t extremum;
  const int* only_if;  // where this holds 0, nothing is done
};

#ifndef TCONV_WITHOUT_FP32
__global__ void __launch_bounds__(ExtremumFallbackConfig::kThreads, ExtremumFallbackConfig::kBlocksPerSm)
    channel_extremum_fallback_kernel(const __grid_constant__ ExtremumFallbackArgs args) {
  using Config = ExtremumFallbackConfig;
  await_previous_kernels();
  if (*args.only_if == 0) return;
  const ConvTransposeLayer& p = args.conv.layer;
  const int64_t count = p.batch * p.out_h * p.out_w, step = int64_t{gridDim.x} * Config::kThreads;
  const ExtremumOrder order(args.extremum);
  for (int64_t i = int64_t{blockIdx.x} * Config::kThreads + threadIdx.x; i < count; i += step) {
    const int64_t row = args.conv.by_out_w.quotient(i), ow = i - row * p.out_w;
    const int64_t n = args.by_out_h.quotient(row), oh = row - n * p.out_h;
    float most = ExtremumOrder::least();
    for (int64_t oc = 0; oc < p.out_channels; ++oc) {
      const float value = plain_output<float, false>(args.conv, n, oc, oh, ow);
      most = norm::max_or_nan(most, order.value(apply_epilogue<float, float>(value, args.conv.epilogue, oc)));
    }
    args.conv.out[i] = order.value(most);
  }
}

// `blocks`: as many as run at once.
inline int64_t launch_extremum_fallback(const ConvCall& call, float* out, int64_t extremum, const int* only_if,
                                        int blocks) {
  const ConvTransposeLayer& p = call.layer;
  ExtremumFallbackArgs args{};
  args.conv.layer = p;
  args.conv.x = static_cast<const float*>(call.x);
  args.conv.weight = static_cast<const float*>(call.weight);
  args.conv.out = out;
  args.conv.epilogue = make_epilogue_args<float>(call);
  args.conv.oc_per_group = p.out_channels / p.groups, args.conv.ic_per_group = p.in_channels / p.groups;
  args.conv.by_oc_per_group = FastDivisor64::make(static_cast<uint64_t>(args.conv.oc_per_group));
  args.conv.by_out_w = FastDivisor64::make(static_cast<uint64_t>(p.out_w));
  args.conv.by_stride_h = FastDivisor64::make(static_cast<uint64_t>(p.stride_h));
  args.conv.by_stride_w = FastDivisor64::make(static_cast<uint64_t>(p.stride_w));
  args.by_out_h = FastDivisor64::make(static_cast<uint64_t>(p.out_h));
  args.extremum = extremum;
  args.only_if = only_if;
  return launch_overlapped(channel_extremum_fallback_kernel, dim3(static_cast<unsigned>(blocks)),
                           dim3(ExtremumFallbackConfig::kThreads), 0, call.stream, args);
}
#endif

}  // namespace cuda
}  // namespace tconv
