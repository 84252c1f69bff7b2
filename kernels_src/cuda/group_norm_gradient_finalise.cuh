// Second of the kernels of GroupNorm's gradients: of a sample's group, the coefficients of its gradient, and what its
// channels add to the gradients of weight and bias. A warp for each, in fp64.
#pragma once

#include "group_norm_gradient_args.cuh"
#include "group_norm_gradient_sums.cuh"

namespace tconv {
namespace cuda {

template <typename Args>
__device__ __forceinline__ GradientMoments<double> moments_of_plane(const Args& args, int64_t plane, int64_t channel) {
  const auto* const parts = args.parts + plane * args.parts_per_plane;
  GradientMoments<double> joined{};
#pragma unroll 1
  for (int i = 0; i < args.parts_per_plane; ++i)
    joined.join({parts[i].count, parts[i].mean, parts[i].m2, parts[i].grad, parts[i].product});
  joined.mean += plane_origin(args, plane, channel);
  return joined;
}

// By one warp: the coefficients of a group, and its channels' shares of the gradients of weight and bias.
// of_channel(c): the moments of the group's channel c.
template <typename Args, typename OfChannel>
__device__ __forceinline__ void finalise_group(const Args& args, int64_t first, int64_t first_plane, int64_t channels,
                                               int lane, const OfChannel& of_channel,
                                               GroupCoefficients<typename Args::Acc>* to) {
  using Acc = typename Args::Acc;
  GradientMoments<double> whole{};
#ifdef TCONV_GRADIENT_CHAINS
  // A lane's only channel is asked for once.
  GradientMoments<double> mine{};
  if (lane < channels) mine = of_channel(lane);
  whole = mine;
#pragma unroll 1
  for (int64_t c = lane + 32; c < channels; c += 32) whole.join(of_channel(c));
#else
#pragma unroll 1
  for (int64_t c = lane; c < channels; c += 32) whole.join(of_channel(c));
#endif
  join_lanes(whole);
  const double count = __shfl_sync(0xFFFFFFFFu, whole.count, 0), mean = __shfl_sync(0xFFFFFFFFu, whole.mean, 0);
  const double rstd = 1.0 / sqrt(__shfl_sync(0xFFFFFFFFu, whole.m2, 0) / count + args.eps);
  double grads = 0, products = 0;  // of w*g, of w*g*(value - mean)
#pragma unroll 1
  for (int64_t c = lane; c < channels; c += 32) {
#ifdef TCONV_GRADIENT_CHAINS
    const GradientMoments<double> channel = c == lane ? mine : of_channel(c);
#else
    const GradientMoments<double> channel = of_channel(c);
#endif
    const double product = channel.product + (channel.mean - mean) * channel.grad;
    const double weight = args.weight != nullptr ? static_cast<double>(static_cast<Acc>(args.weight[first + c])) : 1.0;
    grads += weight * channel.grad;
    products += weight * product;
    if (args.weight_parts != nullptr) args.weight_parts[first_plane + c] = static_cast<Acc>(rstd * product);
    if (args.bias_parts != nullptr) args.bias_parts[first_plane + c] = static_cast<Acc>(channel.grad);
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    grads += __shfl_xor_sync(0xFFFFFFFFu, grads, distance);
    products += __shfl_xor_sync(0xFFFFFFFFu, products, distance);
  }
  if (lane != 0) return;
  // What rounding the mean takes from every deviation is given back by the shift.
  const Acc rounded = static_cast<Acc>(mean);
  const double slope = -rstd * rstd * rstd * products / count;
  const double shift = -rstd * grads / count + slope * (static_cast<double>(rounded) - mean);
  *to = {rounded, static_cast<Acc>(rstd), static_cast<Acc>(slope), static_cast<Acc>(shift)};
}

template <typename Args>
__global__ void __launch_bounds__(GroupNormGradientConfig::kThreads, GroupNormGradientConfig::kMinBlocks)
    group_norm_gradient_finalise_kernel(const __grid_constant__ Args args) {
  constexpr int kWarps = GroupNormGradientConfig::kThreads / 32;
#ifdef TCONV_GRADIENT_CHAINS
  await_previous_kernels();
#endif
  const int lane = threadIdx.x % 32;
  for (int64_t index = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; index < args.num_sample_groups;
       index += static_cast<int64_t>(gridDim.x) * kWarps) {
    const int64_t sample = args.by_groups.quotient(index), group = index - sample * args.num_groups;
    const int64_t of_group = static_cast<int64_t>(args.by_group_channels.divisor), first = group * of_group;
    const int64_t first_plane = sample * args.channels + first;
    finalise_group(
        args, first, first_plane, of_group, lane,
        [&](int64_t c) { return moments_of_plane(args, first_plane + c, first + c); }, &args.coefficients[index]);
  }
}

}  // namespace cuda
}  // namespace tconv
