// How the blocks of a sample whose outputs are held agree on its statistics, while consumers multiply the next sample:
//   moments of each channel -> of each group in this block -> an entry in global memory
//   in one block for each group: entries of all blocks of the sample -> mean and variance, in global memory
//   these -> an affine map per channel
// A message says itself whether it is there: all are made absent before each launch, so that one that repeats, or that
// follows one which never ended, finds what it expects.
#pragma once

#include "conv_group_norm_held_args.cuh"
#include "conv_group_norm_held_prefetch.cuh"
#include "conv_group_norm_held_weights.cuh"
#include "group_norm_moments.cuh"

namespace tconv {
namespace cuda {
namespace held {

__device__ __forceinline__ void publish(void* at, float first, float second) {
  const uint64_t bits = static_cast<uint64_t>(__float_as_uint(second)) << 32 | __float_as_uint(first);
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(at), "l"(bits) : "memory");
}

// A message of two numbers, if it is there.
struct Message {
  uint64_t bits;

  __device__ __forceinline__ void read(const void* at) {
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(bits) : "l"(at) : "memory");
  }
  __device__ __forceinline__ bool is_there() const { return bits != ~uint64_t{0}; }
  __device__ __forceinline__ float first() const { return __uint_as_float(static_cast<uint32_t>(bits)); }
  __device__ __forceinline__ float second() const { return __uint_as_float(static_cast<uint32_t>(bits >> 32)); }
};

// Both of a group's, each of which may be there or not, at once: all blocks ask for the same.
__device__ __forceinline__ void read_both(const Statistics* at, Message& mean, Message& rstd) {
  asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(mean.bits), "=l"(rstd.bits) : "l"(at) : "memory");
}

// Sums over the `lanes` neighbouring lanes that share a group.
template <typename T>
__device__ __forceinline__ T group_sum(T v, int lanes) {
  for (int step = 1; step < lanes; step *= 2) v += __shfl_xor_sync(0xFFFFFFFFu, v, step);
  return v;
}

// Moments that a lane is given one by one, as deviations from the first.
struct MomentsSum {
  float shift, count = 0.0f, sum = 0.0f, squares = 0.0f;

  __device__ __forceinline__ explicit MomentsSum(float first_mean) : shift(first_mean) {}
  __device__ __forceinline__ void add(float n, float mean, float m2) {
    const float d = n > 0.0f ? mean - shift : 0.0f;
    count += n;
    sum += n * d;
    squares += m2 + n * d * d;
  }
};

// Of a channel in a segment.
struct RowMoments {
  float count, mean, m2, shift;
};
__device__ __forceinline__ RowMoments load_moments(uint32_t at) {
  RowMoments v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.count), "=f"(v.mean), "=f"(v.m2), "=f"(v.shift)
               : "r"(at)
               : "memory");
  return v;
}

// Pixels of each of the sample's blocks that are outputs.
template <typename Storage>
__device__ __forceinline__ void fill_counts(const Args<Storage>& args, const Shared& shared, int lane) {
  const Plan& plan = args.plan;
  for (int block = lane; block < plan.blocks_per_sample(); block += 32) {
    const int tile = block / plan.num_strips, strip = block - tile * plan.num_strips;
    const int columns = plan.columns(strip, args.out_w);
    const auto below = [&](int position) {
      const int row = static_cast<int>(args.by_pitch.quotient(position));
      return min(row, args.out_h) * columns + (row < args.out_h ? min(position - row * plan.pitch, columns) : 0);
    };
    const int pixels = below((tile + 1) * kTilePixels) - below(tile * kTilePixels);
    store_word(shared.counts + block * 4, __float_as_uint(static_cast<float>(pixels)));
  }
}

// Entry of a group's channels in this block. In every lane of the group.
template <typename Storage>
__device__ __forceinline__ Entry combine_segments(const Args<Storage>& args, const Shared& shared, int group,
                                                  int lane_of_group, int lanes) {
  const int first = group * args.channels_per_group;
  MomentsSum total(load_moments(shared.moments_at(0, first)).mean);
  for (int i = lane_of_group; i < args.channels_per_group; i += lanes) {
#pragma unroll
    for (int segment = 0; segment < kSegments; ++segment) {
      const RowMoments m = load_moments(shared.moments_at(segment, first + i));
      total.add(m.count, m.mean, m.m2);
    }
  }
  const float count = group_sum(total.count, lanes), sum = group_sum(total.sum, lanes),
              squares = group_sum(total.squares, lanes);
  const float mean = count > 0.0f ? __fdividef(sum, count) : 0.0f, m2 = squares - sum * mean;
  return {total.shift + mean, m2 < 0.0f ? 0.0f : m2};
}

// Combines a group's entries if all are there, and publishes what comes of it. One warp; the same in every lane.
// meanwhile(): while entries are on their way.
template <typename Storage, typename Meanwhile>
__device__ __forceinline__ bool conclude(const Args<Storage>& args, const Shared& shared, const Entry* entries,
                                         Statistics* statistics, int lane, Meanwhile&& meanwhile) {
  const int blocks = args.plan.blocks_per_sample();
  const float channels = static_cast<float>(args.channels_per_group);
  constexpr int kInFlight = 5;  // all, where a sample has 160 blocks at most
  MomentsSum total(0.0f);
  for (int first = lane; first - lane < blocks; first += kInFlight * 32) {
    Message some[kInFlight];
    bool all_there = true;
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) some[k].read(entries + min(first + k * 32, blocks - 1));
    meanwhile();
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) all_there = all_there && some[k].is_there();
    if (!__all_sync(0xFFFFFFFFu, all_there)) return false;
    if (first == lane) total.shift = __shfl_sync(0xFFFFFFFFu, some[0].first(), 0);
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
      const int block = first + k * 32;
      if (block >= blocks) continue;
      const float pixels = __uint_as_float(load_word(shared.counts + block * 4));
      total.add(pixels * channels, some[k].first(), some[k].second());
    }
  }
  const float mean = group_sum(total.sum, 32) * args.inverse_values;
  const float variance = fmaf(-mean, mean, group_sum(total.squares, 32) * args.inverse_values);
  const float v = (variance < 0.0f ? 0.0f : variance) + args.eps;
  const float rough = rsqrtf(v);
  // A Newton step, where there is one.
  const float rstd = v > 0x1p-120f && v < 0x1p120f ? rough * fmaf(-0.5f * v * rough, rough, 1.5f) : rough;
  if (lane == 0) publish(&statistics->mean, total.shift, mean);
  if (lane == 1) publish(&statistics->rstd, rstd, 0.0f);
  return true;
}

// The warp that agrees loads weights, too: so often it looks for a stage given back, with pauses, between asking for a
// message and waiting for it. fp32 has room for few rows of weights, for which it must not be late; in 16 bits messages
// must not.
template <typename Storage>
constexpr int kLooksPerMessage = sizeof(Storage) == 4 ? 8 : 2;
template <typename Storage>
constexpr int kPauseNanoseconds = sizeof(Storage) == 4 ? 8 : 32;
// When it brings a sample to L2: in 16 bits while products leave memory alone, in fp32 with the stores, or it comes too
// early.
template <typename Storage>
constexpr bool kPrefetchesBeforeStatistics = sizeof(Storage) == 2;

// Statistics, after each sample's products; weights; prefetches. One warp.
template <typename Storage>
__device__ __forceinline__ void agree_and_load(const Args<Storage>& args, const Shared& shared, const Place& place,
                                               int lane) {
  constexpr int kChannelsPerLane = kChannels / 32;
  static_assert(kChannelsPerLane == 2, "groups and channels of a lane");
  const int blocks = args.plan.blocks_per_sample();
  int log_lanes = 5;  // of those that share a group: as many for each
  while (log_lanes > 0 && args.num_groups << log_lanes > 32) --log_lanes;
  const int lanes = 1 << log_lanes, lane_of_group = lane & (lanes - 1);
  fill_counts(args, shared, lane);
  prefetch_sample(args, place, place.first_sample, lane);
  prefetch_sample(args, place, place.first_sample + args.samples_at_once, lane);
  __syncwarp();
  float weight[kChannelsPerLane], bias[kChannelsPerLane];
#pragma unroll
  for (int i = 0; i < kChannelsPerLane; ++i) {
    const int channel = min(lane + 32 * i, args.plan.out_channels - 1);
    weight[i] = static_cast<float>(norm::parameter_or(args.norm_weight, channel, 1.0));
    bias[i] = static_cast<float>(norm::parameter_or(args.norm_bias, channel, 0.0));
  }
  const int samples = (args.batch - place.first_sample + args.samples_at_once - 1) / args.samples_at_once;
  WeightsLoader weights(args, samples, lane);
  const auto look_after_weights = [&] {
    weights.load_if_free(args, shared);
    __nanosleep(kPauseNanoseconds<Storage>);  // or it takes the others' issue slots
  };
  const auto meanwhile = [&] {
#pragma unroll 1
    for (int look = 0; look < kLooksPerMessage<Storage>; ++look) look_after_weights();
  };
  uint32_t parity = 0;
  for (int sample = place.first_sample; sample < args.batch; sample += args.samples_at_once, parity ^= 1) {
    Entry* const entries = args.entries + static_cast<int64_t>(sample) * args.num_groups * blocks;
    Statistics* const statistics = args.statistics + static_cast<int64_t>(sample) * args.num_groups;
    do {
      look_after_weights();
    } while (!__all_sync(0xFFFFFFFFu, hopper::mbarrier_passed(shared.moments_full, parity)));
    for (int first = 0; first < args.num_groups; first += 32 >> log_lanes) {
      const int group = first + (lane >> log_lanes);
      // All lanes do as if there were a group for each.
      const Entry own = combine_segments(args, shared, min(group, args.num_groups - 1), lane_of_group, lanes);
      if (group < args.num_groups && lane_of_group == 0)
        publish(entries + group * blocks + place.block, own.mean, own.m2);
    }
    __syncwarp();
    if constexpr (kPrefetchesBeforeStatistics<Storage>)
      prefetch_sample(args, place, sample + 2 * args.samples_at_once, lane);
    for (int group = place.block; group < args.num_groups; group += blocks)
      while (!conclude(args, shared, entries + group * blocks, statistics + group, lane, meanwhile)) {
      }
    // A lane asks for a group, or two, for the channels of all lanes.
    Message mean[kChannelsPerLane] = {}, rstd[kChannelsPerLane] = {};
    bool all_there;
    do {
#pragma unroll
      for (int i = 0; i < kChannelsPerLane; ++i)
        if (32 * i < args.num_groups) read_both(statistics + min(lane + 32 * i, args.num_groups - 1), mean[i], rstd[i]);
      meanwhile();
      all_there = true;
#pragma unroll
      for (int i = 0; i < kChannelsPerLane; ++i) all_there = all_there && mean[i].is_there() && rstd[i].is_there();
    } while (!__all_sync(0xFFFFFFFFu, all_there));
#pragma unroll
    for (int i = 0; i < kChannelsPerLane; ++i) {
      const int channel = lane + 32 * i, group = min(channel, args.plan.out_channels - 1) / args.channels_per_group;
      const auto of_group = [&](float first, float second) {
        const float a = __shfl_sync(0xFFFFFFFFu, first, group % 32), b = __shfl_sync(0xFFFFFFFFu, second, group % 32);
        return group < 32 ? a : b;
      };
      const float center = of_group(mean[0].first(), mean[1].first()),
                  rest = of_group(mean[0].second(), mean[1].second());
      const float scale = of_group(rstd[0].first(), rstd[1].first()) * weight[i];
#pragma unroll
      for (int segment = 0; segment < kSegments; ++segment) {
        const float shift = load_moments(shared.moments_at(segment, channel)).shift;
        store_word(shared.affine_at(segment, channel), __float_as_uint(scale));
        store_word(shared.affine_at(segment, channel) + 8,
                   __float_as_uint(fmaf((shift - center) - rest, scale, bias[i])));
      }
    }
    // Every lane: racecheck sees no order through one that speaks for its warp.
    hopper::mbarrier_arrive(shared.affine_full);
    if constexpr (!kPrefetchesBeforeStatistics<Storage>)
      prefetch_sample(args, place, sample + 2 * args.samples_at_once, lane);
  }
}

}  // namespace held
}  // namespace cuda
}  // namespace tconv
