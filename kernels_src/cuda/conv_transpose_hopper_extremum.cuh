// Minimum or maximum over output channels in the Hopper convolution's epilogue: the outputs themselves are never
// stored. A warp reduces its 16 channels of a segment's pixels in registers, its warpgroup those of the four warps
// through their buffers. So `out` has a plane for each 64 channels (channel_extremum.cuh joins them).
#pragma once

#include "channel_extremum_order.cuh"
#include "conv_transpose_hopper_epilogue.cuh"
#include "conv_transpose_hopper_extent.cuh"

namespace tconv {
namespace cuda {
namespace hopper {

// More accumulators leave no registers for it.
constexpr bool reduces_channels(int n) { return n <= 128; }

// The larger in order of a thread's two channels: what there is of them. Rows are neither paired nor columns joined
// here, so that channels of the plan are the layer's.
struct OrderedChannels {
  ExtremumOrder order;
  bool first, second;  // is there such a channel? The second only with the first.

  __device__ __forceinline__ OrderedChannels(const ExtremumOrder& of, const ChannelPair& channels, const Plan& plan)
      : order(of),
        first(channels.first < plan.out_channels_per_group),
        second(channels.first + 8 < plan.out_channels_per_group) {}

  __device__ __forceinline__ float larger(float a, float b) const {
    const float of_first = order.value(a), of_second = second ? order.value(b) : of_first;
    return first ? norm::max_or_nan(of_first, of_second) : ExtremumOrder::least();
  }
};

__device__ __forceinline__ void store_shared_float(uint32_t at, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(at), "f"(value) : "memory");
}

__device__ __forceinline__ float load_shared_float(uint32_t at) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(at) : "memory");
  return value;
}

struct ExtremumConfig {
  static constexpr int kFragments = 4;  // of 8 columns, reduced at once: then every lane ends with one column
  static constexpr int kColumns = 8 * kFragments;
};

// The largest of values(index) over the lanes that hold a column's channels, in each lane for one of its columns. A
// lane leaves half of its columns to the lane that is 16 away and has the other half of that one's, then with 8, then
// with 4.
template <int kExchanges, typename Values>
__device__ __forceinline__ float over_channels(const Values& values, int index, int lane) {
  if constexpr (kExchanges == 0) {
    return values(index);
  } else {
    constexpr int kLanesAway = 32 >> kExchanges, kIndicesAway = 8 >> kExchanges;
    const float lower = over_channels<kExchanges - 1>(values, index, lane);
    const float upper = over_channels<kExchanges - 1>(values, index + kIndicesAway, lane);
    const bool keeps_upper = lane & kLanesAway;
    const float given = __shfl_xor_sync(0xFFFFFFFFu, keeps_upper ? lower : upper, kLanesAway);
    return norm::max_or_nan(keeps_upper ? upper : lower, given);
  }
}

// This lane's column of those that extremum_of_block leaves it.
__device__ __forceinline__ int extremum_column(int lane) { return lane / 8 * 8 + lane % 4 * 2 + lane / 4 % 2; }

// The largest value in order over the warp's 16 channels, of the columns in fragments j0 on: in each lane of one
// column. value(index, half): what accumulator `index`, of that channel, becomes.
template <int N, typename Value>
__device__ __forceinline__ float extremum_of_block(const OrderedChannels& ordered, const Value& value, int j0,
                                                   int lane) {
  const auto of_column = [&](int index) {
    const int at = 4 * (j0 + index / 2) + index % 2;
    return at < N / 2 ? ordered.larger(value(at, 0), value(at + 2, 1)) : ExtremumOrder::least();
  };
  return over_channels<3>(of_column, 0, lane);
}

// Bias, element-wise chain, and extrema of the warp's channels to its buffer: column by column of each of the kParts
// that a pass has. Accumulators stay as they are: were they finished in place, products would wait for each other.
template <int N, int kParts, typename Storage>
__device__ __forceinline__ void reduce_warp(const HopperArgs<Storage>& args, const ChannelPair& channels,
                                            const OrderedChannels& ordered, int group, uint32_t buffer, int lane,
                                            const float (&acc)[kParts][N / 2]) {
  static_assert(N * kParts * 4 <= kStoreBytesPerWarp, "the buffer holds them");
#pragma unroll
  for (int j0 = 0; j0 < N / 8; j0 += ExtremumConfig::kFragments) {
    const int column = 8 * j0 + extremum_column(lane);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const auto value = [&](int at, int half) {
        return Epilogue::apply<float, Storage>(acc[part][at] * channels.inv_scale[half] + channels.bias[half],
                                               args.epilogue, channels.channel(args.plan, group, half));
      };
      const float found = extremum_of_block<N>(ordered, value, j0, lane);
      if (column < N) store_shared_float(buffer + (part * N + column) * 4, found);
    }
  }
}

// Stores the extrema of one warpgroup's channels in a segment's N pixels: of one column each, or of the kParts that a
// pass has, which are neighbours. The warpgroup's barrier goes by two phases a pass: buffers are full, and read. All
// lanes arrive: no other lane writes and reads for them.
template <int N, int kParts, typename Storage>
__device__ __forceinline__ void store_extrema(const HopperArgs<Storage>& args, const Shared& shared,
                                              const TileCursor& at, int phase_index, int channel0, int segment,
                                              const ChannelPair& channels, const float (&acc)[kParts][N / 2]) {
  const Plan& plan = args.plan;
  const Phase& phase = plan.phases[phase_index];
  if (channel0 >= plan.out_channels_per_group) return;
  int thread = threadIdx.x;
  asm volatile("" : "+r"(thread));
  const int lane = thread % 32, warpgroup = thread / 128;
  const uint32_t barrier = shared.reduced + 8 * warpgroup;
  const uint32_t buffers = shared.stores + 4 * warpgroup * plan.store_bytes_per_warp;
  const ExtremumOrder order(args.extremum);
  mbarrier_wait(barrier, 1);  // the pass before is read; at first there is none
  const OrderedChannels ordered(order, channels, plan);
  reduce_warp<N, kParts>(args, channels, ordered, at.group, buffers + thread / 32 % 4 * plan.store_bytes_per_warp, lane,
                         acc);
  mbarrier_arrive(barrier);
  mbarrier_wait(barrier, 0);

  const int strip_col = at.strip * plan.tile_w;
  const LineExtent<stacks(N)> extent = line_extent<N>(args, phase, at);
  const int odd_cols = plan.phases[phase_index + kParts - 1].out_count_w - strip_col;
  const int group_planes = extremum_planes(plan.out_channels_per_group), planes = plan.num_groups * group_planes;
  const int own_plane = at.group * group_planes + channel0 / kExtremumChannels;
  const bool paired = kParts > 1 && args.pair_stores;  // then both exist
#pragma unroll
  for (int column = thread % 128; column < N; column += 128) {
    int image, row, col;
    if (extent.pair_at(at.tile * plan.tile_pixels + segment * plan.segment_pixels + column, &image, &row, &col) == 0)
      continue;
    alignas(2 * sizeof(Storage)) Storage found[2];
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      float most = ExtremumOrder::least();
#pragma unroll
      for (int warp = 0; warp < 4; ++warp)
        most = norm::max_or_nan(
            most, load_shared_float(buffers + warp * plan.store_bytes_per_warp + (part * N + column) * 4));
      found[part] = static_cast<Storage>(order.value(most));
    }
    Storage* const to = args.out +
                        (static_cast<int64_t>(at.sample + image) * planes + own_plane) * args.out_h * args.out_w +
                        static_cast<int64_t>(phase.out_first_h + row * args.stride_h) * args.out_w + phase.out_first_w +
                        (strip_col + col) * args.stride_w;
    if (paired) {
      using Pair = std::conditional_t<sizeof(Storage) == 4, uint2, unsigned>;
      *reinterpret_cast<Pair*>(to) = *reinterpret_cast<Pair*>(found);
    } else {
      to[0] = found[0];
      if (kParts > 1 && col < odd_cols) to[1] = found[kParts - 1];
    }
  }
  mbarrier_arrive(barrier);
}

}  // namespace hopper
}  // namespace cuda
}  // namespace tconv
