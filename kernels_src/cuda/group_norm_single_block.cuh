// GroupNorm of groups small enough for one block's registers: read once, write once.
//   out = (in - mean) * rstd * weight[c] + bias[c], statistics over the group's channels and pixels
// in, out [batch][channels][plane], the same tensor or two that lie alike relative to 16-byte boundaries.
// What is normalised is transform(in, channel): values as they are, or BatchNorm and activation on the way.
// A group is one contiguous range; each thread holds vectors of it, aligned to 16 bytes; the first and the
// last may be partial.
#pragma once

#include "fast_divisor.h"
#include "group_norm_channel_warps.cuh"

namespace tconv {
namespace cuda {
namespace norm {

template <typename S>
struct GroupNormSingleBlockConfig {
  static constexpr bool kWide = sizeof(S) == 8;  // fp64 takes twice the registers
  static constexpr int kMaxThreads = kWide ? 512 : 1024;
  static constexpr int kVector = 16 / static_cast<int>(sizeof(S));
  static constexpr int kRegistersPerThread = kWide ? 32 : 16;  // that hold values, in the accumulation type
  static constexpr int kVectorsPerThread = kRegistersPerThread * 4 / (kVector * static_cast<int>(sizeof(AccOf<S>)));
  static constexpr int kSharedChannels = kWarp;  // a block has at least so many threads
  // A group may start anywhere in its first vector.
  static constexpr int64_t kMaxElements = int64_t{kMaxThreads} * kVectorsPerThread * kVector - (kVector - 1);

  // A vector reaches into two channels at most.
  static bool fits(const GroupNormShape& shape) {
    return shape.group_elements() <= kMaxElements && shape.plane >= kVector;
  }

  static int threads(const GroupNormShape& shape) {
    const int64_t vectors = ceil_div(shape.group_elements() + kVector - 1, kVector);
    return static_cast<int>(ceil_div(ceil_div(vectors, kVectorsPerThread), kWarp)) * kWarp;
  }
};

// Transform of values that are normalised as they are.
struct AsTheyAre {
  static constexpr bool kIdentity = true;
};

template <typename S, typename Transform>
__global__ void __launch_bounds__(GroupNormSingleBlockConfig<S>::kMaxThreads)
    group_norm_single_block_kernel(const S* in, S* out, GroupNormShape shape, FastDivisor by_plane,
                                   GroupNormAffine<S> affine, Transform transform) {
  using Config = GroupNormSingleBlockConfig<S>;
  using Acc = AccOf<S>;
  constexpr int kVector = Config::kVector;
  __shared__ double first_sums[Config::kMaxThreads / kWarp][1], second_sums[Config::kMaxThreads / kWarp][2];

  const int plane = static_cast<int>(shape.plane);
  const int elements = static_cast<int>(shape.group_elements());
  const int64_t base = int64_t{blockIdx.x} * elements;
  const int64_t first_channel = blockIdx.x % shape.num_groups * shape.channels_per_group();
  in += base;
  out += base;
  // Vector i of this thread holds the group's elements [position(i), position(i) + kVector).
  const int shift = elements_past_boundary(in);
  const int num_threads = blockDim.x, thread = threadIdx.x;
  const auto position = [&](int i) { return (i * num_threads + thread) * kVector - shift; };
  const auto whole = [&](int p) { return p >= 0 && p + kVector <= elements; };
  const auto inside = [&](int p) { return p >= 0 && p < elements; };

  Vector<S, 16> vectors[Config::kVectorsPerThread];
#pragma unroll
  for (int i = 0; i < Config::kVectorsPerThread; ++i) {
    const int p = position(i);
    if (whole(p)) {
      vectors[i] = load_streaming<S, 16>(in + p);
    } else {
#pragma unroll
      for (int j = 0; j < kVector; ++j) vectors[i].values[j] = inside(p + j) ? in[p + j] : to_storage<S>(Acc(0));
    }
  }

  // The channel of each vector's first element, worked out where it is wanted: registers are few. Elements from
  // next_channel(i) on are the next one's.
  const auto this_channel = [&](int i) {
    const int p = position(i);
    return p > 0 && p < elements ? static_cast<int>(by_plane.quotient(p)) : 0;
  };
  const int channels = static_cast<int>(shape.channels_per_group());
  const auto next_channel = [&](int i) { return (this_channel(i) + 1) * plane - position(i); };
  const auto last_channel = [&](int i) { return min(this_channel(i) + 1, channels - 1); };

  if constexpr (!Transform::kIdentity) {
    // Of each channel once, where the group's are few.
    __shared__ typename Transform::OfChannel transforms[Config::kSharedChannels];
    if (thread < min(channels, Config::kSharedChannels))
      transforms[thread] = transform.of_channel(first_channel + thread);
    __syncthreads();
    const auto transform_of = [&](int channel) {
      return channels <= Config::kSharedChannels ? transforms[channel] : transform.of_channel(first_channel + channel);
    };
#pragma unroll
    for (int i = 0; i < Config::kVectorsPerThread; ++i) {
      const int p = position(i);
      if (p + kVector <= 0 || p >= elements) continue;
      const auto here = transform_of(this_channel(i)), next = transform_of(last_channel(i));
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        auto of_channel = here;
        if (j >= next_channel(i)) of_channel = next;
        const Acc value = of_channel.apply(to_acc(vectors[i].values[j]));
        vectors[i].values[j] = to_storage<S>(inside(p + j) ? value : Acc(0));
      }
    }
  }

  // A mean, then deviations from it and from what it missed: a large mean costs no digits.
  Acc values_sum[1] = {0};
#pragma unroll
  for (int i = 0; i < Config::kVectorsPerThread; ++i)
#pragma unroll
    for (int j = 0; j < kVector; ++j) values_sum[0] += to_acc(vectors[i].values[j]);  // outside the group: zero
  double total[1];
  block_sums(values_sum, first_sums, total);
  const Acc centre = static_cast<Acc>(total[0]) / static_cast<Acc>(elements);
  Acc deviations[2] = {0, 0};  // their sum, and that of their squares
#pragma unroll
  for (int i = 0; i < Config::kVectorsPerThread; ++i) {
    const int p = position(i);
    const bool all = whole(p);
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      const Acc d = all || inside(p + j) ? to_acc(vectors[i].values[j]) - centre : Acc(0);
      deviations[0] += d;
      deviations[1] += d * d;
    }
  }
  double sums[2];
  block_sums(deviations, second_sums, sums);

  // One map per channel, worked out once where the group's channels are few.
  __shared__ ChannelAffine<Acc> shared_affines[Config::kSharedChannels];
  __shared__ double mean, rstd;
  const auto work_out = [&](int channel, double of_mean, double of_rstd) {
    return make_channel_affine<Acc>(of_mean, of_rstd, parameter_or(affine.weight, first_channel + channel, 1.0),
                                    parameter_or(affine.bias, first_channel + channel, 0.0));
  };
  if (thread < min(channels, Config::kSharedChannels)) {
    const double correction = sums[0] / elements, variance = sums[1] / elements - correction * correction;
    const double here_mean = centre + correction, here_rstd = 1.0 / sqrt(variance + affine.eps);
    shared_affines[thread] = work_out(thread, here_mean, here_rstd);
    if (thread == 0) mean = here_mean, rstd = here_rstd;
  }
  __syncthreads();
  const auto channel_affine = [&](int channel) {
    return channels <= Config::kSharedChannels ? shared_affines[channel] : work_out(channel, mean, rstd);
  };
#ifdef TCONV_NORM_TAILS
  for (int i = thread; i < channels; i += num_threads)
    transform.keep(int64_t{blockIdx.x} * channels + i, channel_affine(i));
#endif
#pragma unroll
  for (int i = 0; i < Config::kVectorsPerThread; ++i) {
    const int p = position(i);
    if (p + kVector <= 0 || p >= elements) continue;
    const ChannelAffine<Acc> here = channel_affine(this_channel(i)), next = channel_affine(last_channel(i));
#pragma unroll
    for (int j = 0; j < kVector; ++j) {
      ChannelAffine<Acc> of_channel = here;
      if (j >= next_channel(i)) of_channel = next;
#ifdef TCONV_NORM_TAILS
      vectors[i].values[j] = to_storage<S>(transform.after(of_channel.apply(to_acc(vectors[i].values[j]))));
#else
      vectors[i].values[j] = to_storage<S>(of_channel.apply(to_acc(vectors[i].values[j])));
#endif
    }
    if (whole(p)) {
      store_streaming(out + p, vectors[i]);
    } else {
#pragma unroll
      for (int j = 0; j < kVector; ++j)
        if (inside(p + j)) out[p + j] = vectors[i].values[j];
    }
  }
}

template <typename S, typename Transform = AsTheyAre>
int64_t launch_group_norm_single_block(const S* in, S* out, const GroupNormShape& shape,
                                       const GroupNormAffine<S>& affine, cudaStream_t stream,
                                       const Transform& transform = {}) {
  if constexpr (!GroupNormSingleBlockConfig<S>::kWide) {
#ifdef TCONV_NORM_TAILS  // beside ten values steps have no registers
    if (GroupNormChannelWarpsConfig<8>::fits(shape))
      return launch_group_norm_channel_warps<8>(in, out, shape, affine, stream, transform);
#else
    if (GroupNormChannelWarpsConfig<10>::fits(shape))
      return launch_group_norm_channel_warps<10>(in, out, shape, affine, stream, transform);
#endif
    if (GroupNormChannelWarpsConfig<5>::fits(shape))
      return launch_group_norm_channel_warps<5>(in, out, shape, affine, stream, transform);
  }
  return launch(group_norm_single_block_kernel<S, Transform>, shape.batch * shape.num_groups,
                GroupNormSingleBlockConfig<S>::threads(shape), stream, in, out, shape,
                FastDivisor::make(static_cast<uint32_t>(shape.plane)), affine, transform);
}

}  // namespace norm
}  // namespace cuda
}  // namespace tconv
