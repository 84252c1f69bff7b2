// BatchNorm of a stored value as its gradients need it: the maps, and what follows from the sums of its output's
// gradient d. With n = (value - mean) * rstd over a channel of N values,
//
//   grad_weight = sum(d * n),   grad_bias = sum(d),   grad_value = weight * rstd * (d - mean(d) - n * mean(d * n))
//
// and without the last two terms where the statistics are running ones
// (aten/src/ATen/native/cuda/Normalization.cuh in PyTorch).
#pragma once

#include "channel_sums.cuh"
#include "gradient_chain.cuh"
#include "group_norm_plane_moments.cuh"

namespace tconv {
namespace cuda {

// fp64, of a channel: what the map's mean lost when it was rounded, and 1 / standard deviation.
struct BatchNormRest {
  double lost, rstd;
};

// grad_value = scale * d + slope * (value - mean) + shift
template <typename Acc>
struct BatchNormCoefficients {
  Acc mean, scale, slope, shift;
};

template <typename S>
struct BatchNormGradientArgs {
  using Acc = typename StorageTraits<S>::Acc;
  BatchNormPoolArgs norm;
  int64_t rows, channels, sum_rows, count;
  const norm::PartialOf<S>* partials;  // [rows][channels], or null where norm has the statistics
  norm::ChannelAffine<Acc>* maps;      // [channels]
  BatchNormRest* rest;                 // [channels]
  const Acc* sums;                     // [sum_rows][channels], of d
  const Acc* products;                 // of d * (value - the map's mean)
  BatchNormCoefficients<Acc>* coefficients;
  S *grad_weight, *grad_bias, *grad_sums;  // [channels] or null
};

// A block for each channel.
template <typename S>
__global__ void __launch_bounds__(ChannelSumsConfig::kThreads)
    batch_norm_gradient_maps_kernel(const __grid_constant__ BatchNormGradientArgs<S> args) {
  using Acc = typename StorageTraits<S>::Acc;
  const int64_t channel = blockIdx.x;
  double mean, variance;
  if (args.partials != nullptr) {
    const MomentsF64 m = norm::block_combine(args.partials + channel, args.rows, 1, args.channels);
    mean = m.mean, variance = m.m2 / m.count;
  } else {
    mean = static_cast<const Acc*>(args.norm.running_mean)[channel];
    variance = static_cast<const Acc*>(args.norm.running_var)[channel];
  }
  if (threadIdx.x != 0) return;
  const double rstd = 1.0 / sqrt(variance + args.norm.eps);
  const double weight = norm::parameter_or(static_cast<const S*>(args.norm.weight), channel, 1.0);
  const double bias = norm::parameter_or(static_cast<const S*>(args.norm.bias), channel, 0.0);
  args.maps[channel] = norm::make_channel_affine<Acc>(mean, rstd, weight, bias);
  args.rest[channel] = {mean - static_cast<double>(args.maps[channel].mean), rstd};
}

// Likewise.
template <typename S>
__global__ void __launch_bounds__(ChannelSumsConfig::kThreads)
    batch_norm_gradient_finalise_kernel(const __grid_constant__ BatchNormGradientArgs<S> args) {
  using Acc = typename StorageTraits<S>::Acc;
  const int64_t channel = blockIdx.x;
  const Acc* const arrays[2] = {args.sums, args.products};
  double sums[2];
  sum_channel(arrays, args.sum_rows, args.channels, channel, sums);
  if (threadIdx.x != 0) return;
  const BatchNormRest rest = args.rest[channel];
  const double product = sums[1] - rest.lost * sums[0];
  const double weight = norm::parameter_or(static_cast<const S*>(args.norm.weight), channel, 1.0);
  const double scale = weight * rest.rstd, count = static_cast<double>(args.count);
  BatchNormCoefficients<Acc> made{args.maps[channel].mean, static_cast<Acc>(scale), Acc(0), Acc(0)};
  double all = scale * sums[0];
  if (args.norm.use_batch_stats) {
    const double slope = -scale * rest.rstd * rest.rstd * product / count;
    made.slope = static_cast<Acc>(slope);
    made.shift = static_cast<Acc>(-all / count - slope * rest.lost);
    all -= all;  // the batch's mean takes any constant away: 0, or NaN
  }
  args.coefficients[channel] = made;
  if (args.grad_weight != nullptr) args.grad_weight[channel] = to_storage<S>(static_cast<Acc>(rest.rstd * product));
  if (args.grad_bias != nullptr) args.grad_bias[channel] = to_storage<S>(static_cast<Acc>(sums[0]));
  if (args.grad_sums != nullptr) args.grad_sums[channel] = to_storage<S>(static_cast<Acc>(all));
}

// Inner (group_norm_gradient_args.cuh) of BatchNorm and the activation, a chain; its gradient is that of BatchNorm's
// output.
template <int kChain, typename S>
struct BatchNormInner {
  static constexpr int kSums = 1;  // of the gradient times the value's deviation from the map's mean
  using Acc = typename StorageTraits<S>::Acc;
  const norm::ChannelAffine<Acc>* maps;

  struct Channel {
    norm::ChannelAffine<Acc> map;

    template <typename Storage>
    __device__ __forceinline__ Acc value(Acc v) const {
      return Chain<kChain>::template value<Storage>(map.apply(v), *this, 0);
    }
    template <typename Storage, typename Outer>
    __device__ __forceinline__ Acc gradient(Acc v, const Outer& outer, Acc* sums) const {
      const Acc result = Chain<kChain>::template gradient<Storage>(map.apply(v), *this, 0, outer, sums);
      sums[0] += result * (v - map.mean);
      return result;
    }
  };
  __device__ __forceinline__ Channel of_channel(int64_t channel) const { return {maps[channel]}; }
};

}  // namespace cuda
}  // namespace tconv
