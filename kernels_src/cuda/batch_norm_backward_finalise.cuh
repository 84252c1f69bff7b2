// Of a channel of BatchNorm, from what group_norm_gradient_sums.cuh says of its planes' parts: the coefficients of
// every sample's gradient, and the gradients of weight and bias. With n = (value - mean) * rstd over a channel,
//
//   grad_value = weight * rstd * (d - mean(d) - n * mean(d * n)),   grad_weight = sum(d * n),   grad_bias = sum(d)
//
// A block for each channel, fp64, in an order that depends on the sizes alone.
#pragma once

#include "group_norm_gradient_sums.cuh"

namespace tconv {
namespace cuda {

struct BatchNormBackwardConfig {
  static constexpr int kThreads = 256;
};

// args: of GroupNorm with a group for each channel. grad_weight, grad_bias: [channels] or null.
template <typename Args>
__global__ void __launch_bounds__(BatchNormBackwardConfig::kThreads)
    batch_norm_backward_finalise_kernel(const __grid_constant__ Args args, int64_t batch,
                                        typename Args::Storage* grad_weight, typename Args::Storage* grad_bias) {
  using Storage = typename Args::Storage;
  using Acc = typename Args::Acc;
  constexpr int kThreads = BatchNormBackwardConfig::kThreads;
  __shared__ GradientMoments<double> of_warps[kThreads / 32];
  __shared__ GroupCoefficients<Acc> of_channel;
  const int64_t channel = blockIdx.x;
  GradientMoments<double> whole{};
#pragma unroll 1
  for (int64_t i = threadIdx.x; i < batch * args.parts_per_plane; i += kThreads) {
    const int64_t sample = args.by_parts.quotient(i), plane = sample * args.channels + channel;
    const GradientMoments<Acc> part = args.parts[plane * args.parts_per_plane + i - sample * args.parts_per_plane];
    const double origin = plane_origin(args, plane, channel);
    whole.join({part.count, part.mean + origin, part.m2, part.grad, part.product});
  }
  join_lanes(whole);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = whole;
  __syncthreads();
  if (threadIdx.x == 0) {
#pragma unroll 1
    for (int warp = 1; warp < kThreads / 32; ++warp) whole.join(of_warps[warp]);
    const double rstd = 1.0 / sqrt(whole.m2 / whole.count + args.eps);
    const double weight = args.weight != nullptr ? static_cast<double>(static_cast<Acc>(args.weight[channel])) : 1.0;
    const double slope = -rstd * rstd * rstd * weight * whole.product / whole.count;
    // What rounding the mean takes from every deviation is given back by the shift.
    const Acc rounded = static_cast<Acc>(whole.mean);
    const double lost = whole.mean - static_cast<double>(rounded);
    const double shift = -rstd * weight * whole.grad / whole.count - slope * lost;
    of_channel = {rounded, static_cast<Acc>(rstd), static_cast<Acc>(slope), static_cast<Acc>(shift)};
    if (grad_weight != nullptr) grad_weight[channel] = to_storage<Storage>(static_cast<Acc>(rstd * whole.product));
    if (grad_bias != nullptr) grad_bias[channel] = to_storage<Storage>(static_cast<Acc>(whole.grad));
  }
  __syncthreads();
  for (int64_t sample = threadIdx.x; sample < batch; sample += kThreads)
    args.coefficients[sample * args.channels + channel] = of_channel;
}

}  // namespace cuda
}  // namespace tconv
