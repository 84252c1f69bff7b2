// Of a channel of BatchNorm whose result has each plane's mean taken away, from what group_norm_gradient_sums.cuh says
// of its planes' parts: the coefficients of every sample's gradient, and the gradients of weight and bias. With the
// mean of the plane, p, that of the channel, m, and its count of values,
//
//   grad_weight = rstd * s,   s = sum(d * (value - p)) over the channel,   grad_bias = 0
//   grad_value = weight * rstd * (d - mean(d) over the plane) - weight * rstd^3 * s / count * (value - m)
//
// A block for each channel, fp64, in an order that depends on the sizes alone.
#pragma once

#include "group_norm_gradient_sums.cuh"

namespace tconv {
namespace cuda {

struct CentredBatchNormBackwardConfig {
  static constexpr int kThreads = 256;

  // Threads that share a plane, a power of two, of one warp: others take other planes beside them.
  static int threads_per_plane(int parts) {
    int threads = 1;
    while (threads < 32 && threads < parts) threads *= 2;
    return threads;
  }
};

// As join_lanes, of so many neighbouring lanes, a power of two: the first one's is all theirs.
__device__ __forceinline__ void join_neighbours(GradientMoments<double>& moments, int lanes) {
#pragma unroll 1
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    GradientMoments<double> other;
    other.count = __shfl_xor_sync(0xFFFFFFFFu, moments.count, distance);
    other.mean = __shfl_xor_sync(0xFFFFFFFFu, moments.mean, distance);
    other.m2 = __shfl_xor_sync(0xFFFFFFFFu, moments.m2, distance);
    other.grad = __shfl_xor_sync(0xFFFFFFFFu, moments.grad, distance);
    other.product = __shfl_xor_sync(0xFFFFFFFFu, moments.product, distance);
    moments.join(other);
  }
}

struct CentredChannel {
  double mean, rstd, weight, slope;
};

// args: of GroupNorm with a group for each channel. grad_weight, grad_bias: [channels] or null.
template <typename Args>
__global__ void __launch_bounds__(CentredBatchNormBackwardConfig::kThreads)
    centred_batch_norm_backward_finalise_kernel(const __grid_constant__ Args args, int64_t batch, int threads_per_plane,
                                                typename Args::Storage* grad_weight,
                                                typename Args::Storage* grad_bias) {
  using Storage = typename Args::Storage;
  using Acc = typename Args::Acc;
  constexpr int kThreads = CentredBatchNormBackwardConfig::kThreads;
  __shared__ GradientMoments<double> of_warps[kThreads / 32];
  __shared__ CentredChannel of_channel;
  const int64_t channel = blockIdx.x;
  const int place = static_cast<int>(threadIdx.x) % threads_per_plane, planes = kThreads / threads_per_plane;
  GradientMoments<double> whole{};
#pragma unroll 1
  for (int64_t first = 0; first < batch; first += planes) {
    const int64_t sample = first + static_cast<int>(threadIdx.x) / threads_per_plane;
    const int64_t plane = sample * args.channels + channel;
    GradientMoments<double> of_plane{};
#pragma unroll 1
    for (int i = place; sample < batch && i < args.parts_per_plane; i += threads_per_plane) {
      const GradientMoments<Acc> part = args.parts[plane * args.parts_per_plane + i];
      of_plane.join({part.count, part.mean, part.m2, part.grad, part.product});
    }
    join_neighbours(of_plane, threads_per_plane);
    if (sample >= batch || place != 0) continue;
    args.coefficients[plane].shift = static_cast<Acc>(of_plane.grad / of_plane.count);  // until the slope is known
    // Products stay those with deviations within the plane: the sums of d are no part of what is joined, but that an
    // infinite one leaves NaN.
    const double origin = plane_origin(args, plane, channel);
    whole.join({of_plane.count, of_plane.mean + origin, of_plane.m2, of_plane.grad - of_plane.grad, of_plane.product});
  }
  join_lanes(whole);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = whole;
  __syncthreads();
  if (threadIdx.x == 0) {
#pragma unroll 1
    for (int warp = 1; warp < kThreads / 32; ++warp) whole.join(of_warps[warp]);
    const double rstd = 1.0 / sqrt(whole.m2 / whole.count + args.eps);
    const double weight = args.weight != nullptr ? static_cast<double>(static_cast<Acc>(args.weight[channel])) : 1.0;
    of_channel = {whole.mean, rstd, weight, -rstd * rstd * rstd * weight * whole.product / whole.count};
    if (grad_weight != nullptr) grad_weight[channel] = to_storage<Storage>(static_cast<Acc>(rstd * whole.product));
    if (grad_bias != nullptr) grad_bias[channel] = to_storage<Storage>(static_cast<Acc>(whole.grad));
  }
  __syncthreads();
  const CentredChannel c = of_channel;
  // What rounding the mean takes from every deviation is given back by the shift.
  const Acc rounded = static_cast<Acc>(c.mean);
  const double lost = c.mean - static_cast<double>(rounded);
#pragma unroll 1
  for (int64_t sample = threadIdx.x; sample < batch; sample += kThreads) {
    GroupCoefficients<Acc>& made = args.coefficients[sample * args.channels + channel];
    const double shift = -c.rstd * c.weight * static_cast<double>(made.shift) - c.slope * lost;
    made = {rounded, static_cast<Acc>(c.rstd), static_cast<Acc>(c.slope), static_cast<Acc>(shift)};
  }
}

}  // namespace cuda
}  // namespace tconv
