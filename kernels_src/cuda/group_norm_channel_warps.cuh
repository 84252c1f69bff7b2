// GroupNorm of groups small enough for one block's registers, a warp for each channel: no element is asked which
// channel it belongs to. `channels` are a group's. Planes that fill most of a warp's registers; others take
// group_norm_single_block.cuh, which says the rest.
#pragma once

#include "group_norm_finalise.cuh"

namespace tconv {
namespace cuda {
namespace norm {

template <>
struct RawVector<2> {
  using type = unsigned short;
};

template <int kItemsOfLane>
struct GroupNormChannelWarpsConfig {
  static constexpr int kItems = kItemsOfLane;  // values a lane holds
  static constexpr int kMaxChannels = 16;      // warps of the largest block
  static constexpr int kMinBlocks = 3;         // of that size, that a multiprocessor should have room for

  // At most a third of the lanes' registers would be empty.
  static bool fits(const GroupNormShape& shape) {
    return shape.channels_per_group() <= kMaxChannels && shape.plane <= kItems * kWarp &&
           shape.plane * 3 >= kItems * kWarp * 2;
  }
};

template <typename S, int kItems, typename Transform>
__global__ void __launch_bounds__(GroupNormChannelWarpsConfig<kItems>::kMaxChannels* kWarp,
                                  GroupNormChannelWarpsConfig<kItems>::kMinBlocks)
    group_norm_channel_warps_kernel(const S* in, S* out, int plane, int channels, unsigned num_groups,
                                    GroupNormAffine<S> affine, Transform transform) {
  using Acc = AccOf<S>;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t channel = blockIdx.x % num_groups * channels + warp;
  const int64_t first = (int64_t{blockIdx.x} * channels + warp) * plane + lane;
  in += first;
  out += first;
  asm volatile("" : "+l"(in), "+l"(out));  // worked out once, not for every load that may be left out
  const auto inside = [&](int i) { return i * kWarp + lane < plane; };

  S loaded[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i)
    if (inside(i)) loaded[i] = load_streaming<S, sizeof(S)>(in + i * kWarp).values[0];
  Acc values[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) values[i] = inside(i) ? to_acc(loaded[i]) : Acc(0);
  if constexpr (!Transform::kIdentity) {
    const auto of_channel = transform.of_channel(channel);
#pragma unroll
    for (int i = 0; i < kItems; ++i) values[i] = of_channel.apply(values[i]);
  }

  const double weight = parameter_or(affine.weight, channel, 1.0), bias = parameter_or(affine.bias, channel, 0.0);

  // Every channel has the same count, so that the group's mean is the mean of theirs.
  __shared__ double means[GroupNormChannelWarpsConfig<kItems>::kMaxChannels],
      m2s[GroupNormChannelWarpsConfig<kItems>::kMaxChannels];
  __shared__ double mean, rstd;
  const auto moments = warp_moments<PartialOf<S>>(values, plane, lane);
  if (lane == 0) means[warp] = moments.mean, m2s[warp] = moments.m2;
  __syncthreads();
  if (warp == 0) {
    const bool real = lane < channels;
    const double group_mean = warp_sum(real ? means[lane] : 0.0) / channels;
    const double deviation = real ? means[lane] - group_mean : 0.0;
    const double m2 = warp_sum(real ? m2s[lane] + plane * deviation * deviation : 0.0);
    if (lane == 0) mean = group_mean, rstd = 1.0 / sqrt(m2 / (static_cast<double>(channels) * plane) + affine.eps);
  }
  __syncthreads();
  const ChannelAffine<Acc> map = make_channel_affine<Acc>(mean, rstd, weight, bias);
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (!inside(i)) continue;
    Vector<S, sizeof(S)> result;
#ifdef TCONV_NORM_TAILS
    result.values[0] = to_storage<S>(transform.after(map.apply(values[i])));
#else
    result.values[0] = to_storage<S>(map.apply(values[i]));
#endif
    store_streaming(out + i * kWarp, result);
  }
#ifdef TCONV_NORM_TAILS
  if (lane == 0) transform.keep(int64_t{blockIdx.x} * channels + warp, map);
#endif
}

template <int kItems, typename S, typename Transform>
int64_t launch_group_norm_channel_warps(const S* in, S* out, const GroupNormShape& shape,
                                        const GroupNormAffine<S>& affine, cudaStream_t stream,
                                        const Transform& transform) {
  const int channels = static_cast<int>(shape.channels_per_group());
  return launch(group_norm_channel_warps_kernel<S, kItems, Transform>, shape.batch * shape.num_groups, channels * kWarp,
                stream, in, out, static_cast<int>(shape.plane), channels, static_cast<unsigned>(shape.num_groups),
                affine, transform);
}

}  // namespace norm
}  // namespace cuda
}  // namespace tconv
