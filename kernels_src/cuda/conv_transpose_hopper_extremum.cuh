// Minimum or maximum over output channels in the Hopper convolution's epilogue: the outputs themselves are never
// stored. A warp has 16 channels of a segment's pixels; what it stores of each pixel is one value, the extremum of
// those of its channels that there are. So `out` has a plane for each 16 channels (channel_extremum.cuh joins them).
#pragma once

#include "channel_extremum_order.cuh"
#include "conv_transpose_hopper_epilogue.cuh"

namespace tconv {
namespace cuda {
namespace hopper {

// A thread's two channels in the order of the extremum. One that there is not loses to every other value.
struct OrderedChannels {
  uint32_t keep[2], turn[2];

  __device__ __forceinline__ OrderedChannels(const ExtremumOrder& order, const ChannelPair& channels,
                                             const Plan& plan) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool real = channels.real(plan, half);
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

// Of kValues values of this lane and of the lane `distance` away: the larger ones of one half, which half by that bit
// of the lane.
template <int kValues>
__device__ __forceinline__ void keep_half(float (&values)[ExtremumConfig::kColumns / 4], int lane, int distance) {
  const bool upper = lane & distance;
#pragma unroll
  for (int i = 0; i < kValues / 2; ++i) {
    const float own = upper ? values[i + kValues / 2] : values[i];
    const float given = upper ? values[i] : values[i + kValues / 2];
    values[i] = norm::max_or_nan(own, __shfl_xor_sync(0xFFFFFFFFu, given, distance));
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
  constexpr int kValues = ExtremumConfig::kColumns / 4;
  float values[kValues];
#pragma unroll
  for (int i = 0; i < kValues; ++i) {
    const int at = 4 * (j0 + i / 2) + i % 2;
    values[i] = __uint_as_float(ExtremumOrder::kLeastBits);
    if (at < N / 2) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float value =
            Epilogue::apply<float, Storage>(acc[at + 2 * half] * channels.inv_scale[half] + channels.bias[half],
                                            args.epilogue, channels.channel(args.plan, group, half));
        values[i] = norm::max_or_nan(values[i], ordered(value, half));
      }
    }
  }
  keep_half<kValues>(values, lane, 16);
  keep_half<kValues / 2>(values, lane, 8);
  keep_half<kValues / 4>(values, lane, 4);
  return values[0];
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
  const int group_planes = extremum_planes(plan.out_channels_per_group);
  const int64_t plane = static_cast<int64_t>(args.out_h) * args.out_w;
  const int64_t planes = static_cast<int64_t>(plan.num_groups) * group_planes;
  Storage* const tile_out = args.out +
                            (at.sample * planes + at.group * group_planes + first_channel / kExtremumChannels) * plane +
                            static_cast<int64_t>(phase.out_first_h) * args.out_w +
                            static_cast<int64_t>(strip_col) * args.stride_w + phase.out_first_w;
  const ExtremumOrder order(args.extremum);
  const OrderedChannels ordered(order, channels, plan);
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
    Storage* const to = tile_out + image * planes * plane + static_cast<int64_t>(row) * args.stride_h * args.out_w +
                        static_cast<int64_t>(col) * args.stride_w;
    to[0] = static_cast<Storage>(found[0]);
    if (kParts > 1 && col < odd_cols) to[1] = static_cast<Storage>(found[kParts - 1]);
  }
}

}  // namespace hopper
}  // namespace cuda
}  // namespace tconv
