// GroupNorm statistics: partial moments of each channel -> one affine map per (sample, channel).
//   mean, var over the group's channels and pixels (biased), rstd = 1 / sqrt(var + eps)
//   affine[n][c] = { mean, rstd * weight[c], bias[c] }
// partials [batch][num_partials][channels]; affine [batch][channels].
// only_if: where it holds 0, nothing is done (null: something is).
// One block per (sample, group) combines them in fp64 in a fixed order.
#pragma once

#include "group_norm_moments.cuh"

namespace tconv {
namespace cuda {
namespace norm {

struct GroupNormShape {
  int64_t batch, channels, plane, num_groups;  // plane = height * width

  TCONV_HD int64_t channels_per_group() const { return channels / num_groups; }
  TCONV_HD int64_t group_elements() const { return channels_per_group() * plane; }
  TCONV_HD int64_t elements() const { return batch * channels * plane; }
};

// weight and bias: [channels] or null.
template <typename S>
struct GroupNormAffine {
  const S* weight;
  const S* bias;
  double eps;
};

struct GroupNormFinaliseConfig {
  static constexpr int kMaxThreads = 256;

  // Enough threads for the entries of a group, not more.
  static int threads(int64_t entries) {
    const int64_t warps = ceil_div(entries, 2 * kWarp);
    return static_cast<int>(warps < 1 ? 1 : warps > kMaxThreads / kWarp ? kMaxThreads / kWarp : warps) * kWarp;
  }
};

template <typename S>
__global__ void __launch_bounds__(GroupNormFinaliseConfig::kMaxThreads)
    group_norm_finalise_kernel(const PartialOf<S>* __restrict__ partials, int64_t num_partials, GroupNormShape shape,
                               GroupNormAffine<S> affine, ChannelAffine<AccOf<S>>* __restrict__ table,
                               const int* only_if) {
  if (only_if != nullptr && *only_if == 0) return;
  const int64_t group_channels = shape.channels_per_group();
  const int64_t sample = blockIdx.x / shape.num_groups;
  const int64_t first_channel = (blockIdx.x - sample * shape.num_groups) * group_channels;
  const MomentsF64 m = block_combine(partials + sample * num_partials * shape.channels + first_channel, num_partials,
                                     group_channels, shape.channels);

  __shared__ double mean, rstd;
  if (threadIdx.x == 0) {
    mean = m.mean;
    rstd = 1.0 / sqrt(m.m2 / m.count + affine.eps);
  }
  __syncthreads();
  for (int64_t i = threadIdx.x; i < group_channels; i += blockDim.x) {
    const int64_t channel = first_channel + i;
    table[sample * shape.channels + channel] = make_channel_affine<AccOf<S>>(
        mean, rstd, parameter_or(affine.weight, channel, 1.0), parameter_or(affine.bias, channel, 0.0));
  }
}

template <typename S>
int64_t launch_group_norm_finalise(const PartialOf<S>* partials, int64_t num_partials, const GroupNormShape& shape,
                                   const GroupNormAffine<S>& affine, ChannelAffine<AccOf<S>>* table,
                                   cudaStream_t stream, const int* only_if = nullptr) {
  const int threads = GroupNormFinaliseConfig::threads(num_partials * shape.channels_per_group());
  return launch(group_norm_finalise_kernel<S>, shape.batch * shape.num_groups, threads, stream, partials, num_partials,
                shape, affine, table, only_if);
}

}  // namespace norm
}  // namespace cuda
}  // namespace tconv
