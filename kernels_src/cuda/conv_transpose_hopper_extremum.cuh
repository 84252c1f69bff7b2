// Minimum or maximum over output channels in the Hopper convolution's epilogue: the outputs themselves are never
// stored. A warp has 16 channels of a segment's pixels; what it stores of each pixel is one value, the extremum of
// those of its channels that there are. So `out` has a plane for each 16 channels (channel_extremum.cuh joins them).
#pragma once

#include "channel_extremum_order.cuh"
#include "conv_transpose_hopper_epilogue.cuh"

namespace tconv {
namespace cuda {
namespace hopper {

// A thread's two channels in the order of the extremum. One that there is not loses to every other value. Rows are
// neither paired nor columns joined here, so that channels of the plan are the layer's.
struct OrderedChannels {
  uint32_t keep[2], turn[2];

  __device__ __forceinline__ OrderedChannels(const ExtremumOrder& order, int first, const Plan& plan) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool real = first + half * 8 < plan.out_channels_per_group;
      keep[half] = real ? 0xFFFFFFFFu : 0u;
      turn[half] = real ? order.sign : ExtremumOrder::kLeastBits;
    }
  }

  __device__ __forceinline__ float operator()(float value, int half) const {
    return __uint_as_float((__float_as_uint(value) & keep[half]) ^ turn[half]);
  }
};

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

// Bias, element-wise chain and the largest value in order over the warp's 16 channels, of the columns in fragments j0
// on: in each lane of one column.
template <int N, typename Storage>
__device__ __forceinline__ float extremum_of_block(const HopperArgs<Storage>& args, const ChannelPair& channels,
                                                   const OrderedChannels& ordered, int group, const float (&acc)[N / 2],
                                                   int j0, int lane) {
  const auto of_channel = [&](float sum, int half) {
    const float value = Epilogue::apply<float, Storage>(sum * channels.inv_scale[half] + channels.bias[half],
                                                        args.epilogue, channels.channel(args.plan, group, half));
    return ordered(value, half);
  };
  const auto of_column = [&](int index) {
    const int at = 4 * (j0 + index / 2) + index % 2;
    if (at >= N / 2) return __uint_as_float(ExtremumOrder::kLeastBits);
    return norm::max_or_nan(of_channel(acc[at], 0), of_channel(acc[at + 2], 1));
  };
  return over_channels<3>(of_column, 0, lane);
}

// Stores the extrema of one warpgroup's channels in a segment's N pixels: of one column each, or of the kParts that a
// pass has, which are neighbours.
template <int N, int kParts, typename Storage>
__device__ __forceinline__ void store_extrema(const HopperArgs<Storage>& args, const TileCursor& at, int phase_index,
                                              int channel0, int segment, const ChannelPair& channels,
                                              const float (&acc)[kParts][N / 2]) {
  const Plan& plan = args.plan;
  const Phase& phase = plan.phases[phase_index];
  int thread = threadIdx.x;
  asm volatile("" : "+r"(thread));
  const int lane = thread % 32, first_channel = channel0 + thread / 32 % 4 * kExtremumChannels;
  if (first_channel >= plan.out_channels_per_group) return;
  const int strip_col = at.strip * plan.tile_w;
  const LineExtent<stacks(N)> extent{min(plan.line_samples, args.batch - at.sample),
                                     phase.out_count_h,
                                     min(plan.tile_w, phase.out_count_w - strip_col),
                                     plan.image_rows,
                                     args.by_pitch,
                                     args.by_image_rows};
  const int odd_cols = plan.phases[phase_index + kParts - 1].out_count_w - strip_col;
  const int group_planes = extremum_planes(plan.out_channels_per_group), planes = plan.num_groups * group_planes;
  const int own_plane = at.group * group_planes + first_channel / kExtremumChannels;
  const bool paired = kParts > 1 && args.pair_stores;  // then both exist
  const ExtremumOrder order(args.extremum);
  const OrderedChannels ordered(order, channels.first, plan);
#pragma unroll
  for (int j0 = 0; j0 < N / 8; j0 += ExtremumConfig::kFragments) {
    float found[kParts];
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      found[part] = order.value(extremum_of_block<N>(args, channels, ordered, at.group, acc[part], j0, lane));
    const int column = 8 * j0 + extremum_column(lane);
    int position = at.tile * plan.tile_pixels + segment * plan.segment_pixels + column;
    asm volatile("" : "+r"(position));  // not earlier: places worked out ahead would not fit the registers
    int image, row, col;
    if (extent.pair_at(position, &image, &row, &col) == 0 || column >= N) continue;
    Storage* const to = args.out +
                        (static_cast<int64_t>(at.sample + image) * planes + own_plane) * args.out_h * args.out_w +
                        static_cast<int64_t>(phase.out_first_h + row * args.stride_h) * args.out_w + phase.out_first_w +
                        (strip_col + col) * args.stride_w;
    if (paired) {
      Storage both[2] = {static_cast<Storage>(found[0]), static_cast<Storage>(found[kParts - 1])};
      using Pair = std::conditional_t<sizeof(Storage) == 4, uint2, unsigned>;
      *reinterpret_cast<Pair*>(to) = *reinterpret_cast<Pair*>(both);
      continue;
    }
    to[0] = static_cast<Storage>(found[0]);
    if (kParts > 1 && col < odd_cols) to[1] = static_cast<Storage>(found[kParts - 1]);
  }
}

}  // namespace hopper
}  // namespace cuda
}  // namespace tconv
