// Small groups behind a pool, in one go: of a sample's group a block finds the windows' maxima, GroupNorm's
// coefficients (group_norm_gradient_args.cuh), and the gradients of the maxima's BatchNorm with their sums. Two warps
// for each channel, whose windows their lanes hold in registers, so that every value is read once. Bound by memory.
#pragma once

#include "batch_norm_gradient.cuh"
#include "group_norm_gradient_finalise.cuh"
#include "pool_maxima.cuh"

namespace tconv {
namespace cuda {

struct PoolGroupNormConfig {
  static constexpr int kMaxChannels = 16;  // of a group
  static constexpr int kWarps = 2;         // of a channel
  static constexpr int kItems = 5;         // of a lane
  static constexpr int kMaxPooled = 32 * kWarps * kItems;
  static constexpr int kMaxThreads = 32 * kWarps * kMaxChannels;

  // fp64 has no registers for it.
  TCONV_HD static constexpr bool serves(int64_t storage_bytes) { return storage_bytes < 8; }
  static bool fits(int64_t group_channels, int64_t pooled) {
    return group_channels <= kMaxChannels && pooled <= kMaxPooled;
  }
};

template <typename Norm, typename S>
struct PoolGroupNormArgs {
  Norm norm;  // GroupNorm's kernels' arguments; its value and parts are not used
  PoolGradientArgs<S> pool;
  int group_channels, pooled;
  FastDivisor by_pooled_w;
};

// kPairs: as in pool_maxima.cuh.
template <bool kPairs, typename Norm, typename S>
__global__ void __launch_bounds__(PoolGroupNormConfig::kMaxThreads)
    pool_group_norm_gradient_kernel(const __grid_constant__ PoolGroupNormArgs<Norm, S> args) {
  using Config = PoolGroupNormConfig;
  using Acc = typename StorageTraits<S>::Acc;
  constexpr int kItems = Config::kItems;
  __shared__ GradientMoments<double> moments[Config::kMaxChannels][Config::kWarps];
  __shared__ Acc sums_of_warps[Config::kMaxChannels][Config::kWarps][2];
  __shared__ GroupCoefficients<Acc> coefficients;
  const int lane = threadIdx.x % 32, part = threadIdx.x / 32 % Config::kWarps;
  const int of_group = threadIdx.x / (32 * Config::kWarps);  // the channel
  const int64_t sample = args.norm.by_groups.quotient(blockIdx.x);
  const int64_t group = blockIdx.x - sample * args.norm.num_groups;
  const int64_t first_channel = group * args.group_channels, channel = first_channel + of_group;
  const int64_t plane = sample * args.norm.channels + channel, first = plane * args.pooled;
  const auto inner = args.norm.inner.of_channel(channel);
  const int step = 32 * Config::kWarps, mine = part * 32 + lane;
  const auto is_there = [&](int i) { return i * step + mine < args.pooled; };

  const S* const grads = args.norm.grad + first + mine;  // read twice, the second time from L1
  const S* const image = args.pool.value + plane * args.pool.height * args.pool.width;
  Acc values[kItems];  // of a lane
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    values[i] = Acc(0);
    if (!is_there(i)) continue;
    const int at = i * step + mine, row = static_cast<int>(args.by_pooled_w.quotient(at));
    int winner;
    const int col = at - row * static_cast<int>(args.pool.windows.cols);
    values[i] = norm::to_acc(window_maximum<kPairs>(args.pool, inner.map, image, row, col, &winner));
    args.pool.winners[first + at] = static_cast<uint8_t>(winner);
  }

  // Two passes about the mean.
  Acc count = 0, sum = 0;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (!is_there(i)) continue;
    count += Acc(1), sum += inner.template value<S>(values[i]);
  }
  count = norm::warp_sum(count), sum = norm::warp_sum(sum);
  const Acc centre = count > Acc(0) ? sum / count : Acc(0);
  Acc deviation = 0, squares = 0, grad = 0, product = 0;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (!is_there(i)) continue;
    const Acc d = inner.template value<S>(values[i]) - centre;
    const Acc g = norm::to_acc(grads[i * step]);
    deviation += d, squares += d * d, grad += g, product += g * d;
  }
  deviation = norm::warp_sum(deviation), squares = norm::warp_sum(squares);
  grad = norm::warp_sum(grad), product = norm::warp_sum(product);
  if (lane == 0) {
    const double correction = count > Acc(0) ? static_cast<double>(deviation / count) : 0.0;
    moments[of_group][part] = {count, centre + correction, squares - deviation * correction, grad,
                               product - correction * grad};
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    if (lane < args.group_channels)
      for (int i = 1; i < Config::kWarps; ++i) moments[lane][0].join(moments[lane][i]);
    finalise_group(
        args.norm, first_channel, sample * args.norm.channels + first_channel, args.group_channels, lane,
        [&](int64_t c) { return moments[c][0]; }, &coefficients);
  }
  __syncthreads();

  const Acc scale =
      coefficients.rstd * (args.norm.weight != nullptr ? static_cast<Acc>(args.norm.weight[channel]) : Acc(1));
  Acc sums[2] = {};
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (!is_there(i)) continue;
    const auto outer = [&](Acc value) {
      return scale * norm::to_acc(grads[i * step]) +
             (coefficients.slope * (value - coefficients.mean) + coefficients.shift);
    };
    const Acc result = inner.template gradient<S>(values[i], outer, sums + 1);
    sums[0] += result;
    args.norm.grad_value[first + i * step + mine] = to_storage<S>(result);
  }
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    sums[k] = norm::warp_sum(sums[k]);
    if (lane == 0) sums_of_warps[of_group][part][k] = sums[k];
  }
  __syncthreads();
  if (part > 0 || lane >= 2) return;
  Acc all = 0;
  for (int i = 0; i < Config::kWarps; ++i) all += sums_of_warps[of_group][i][lane];
  args.norm.sum_parts[lane][plane] = all;
}

}  // namespace cuda
}  // namespace tconv
