// Outputs of joined columns (joined_columns.h): the rows of a tile are a channel's columns next to each other, so that
// a warp stores whole lines.
#pragma once

#include "conv_transpose_hopper_epilogue.cuh"

namespace tconv {
namespace cuda {
namespace hopper {

// Bias, element-wise chain and stores of one warpgroup's 64 rows x one segment, through a buffer of each warp:
// fragments in, the columns of one channel out, 32 at once.
template <int N, typename Storage>
__device__ __forceinline__ void finish_joined_segment(const HopperArgs<Storage>& args, const Shared& shared,
                                                      const TileCursor& at, int phase_index, int channel0, int segment,
                                                      const ChannelPair& channels, float (&acc)[N / 2]) {
  const Plan& plan = args.plan;
  const Phase& phase = plan.phases[phase_index];
  int thread = threadIdx.x;
  asm volatile("" : "+r"(thread));
  const LineExtent<stacks(N)> extent{min(plan.line_samples, args.batch - at.sample),
                                     phase.out_count_h,
                                     min(plan.tile_w, phase.out_count_w - at.strip * plan.tile_w),
                                     plan.image_rows,
                                     args.by_pitch,
                                     args.by_image_rows};
  const int first_position = at.tile * plan.tile_pixels + segment * plan.segment_pixels;
  const uint32_t buffer = shared.stores + thread / 32 * plan.store_bytes_per_warp;
  const uint32_t write_at = buffer + ((thread % 32 / 4) * kStorePitch + 2 * (thread % 4)) * 4;
  constexpr int kBlocks = (N + kStoreColumns - 1) / kStoreColumns, kFragments = kStoreColumns / 8;
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    const int columns = min(kStoreColumns, N - block * kStoreColumns);
    finish_fragments<N>(args, channels, at.group, acc, block * kFragments, min((block + 1) * kFragments, N / 8));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      __syncwarp();
#pragma unroll
      for (int j = block * kFragments; j < (block + 1) * kFragments && j < N / 8; ++j)
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(write_at + j % kFragments * 32),
                     "f"(acc[4 * j + 2 * half]), "f"(acc[4 * j + 2 * half + 1])
                     : "memory");
      __syncwarp();
      int lane = thread;
      asm volatile("" : "+r"(lane));  // not earlier: what follows from it would not fit the registers
      const int warp = lane / 32 % 4, bits = plan.joined.slot_bits(), stride = plan.joined.stride;
      lane %= 32;
      // This lane's slot, and its first column of those that the warp stores at once.
      const int lane_column = lane >> bits, slot = lane - (lane_column << bits), columns_at_once = 32 >> bits;
      const int out_column = at.strip * plan.tile_w * stride + slot - plan.joined.crop;
      const int group_channels = plan.out_channels_per_group >> bits;
      const int first_channel = ((channel0 + warp * 16) >> bits) + half * (kStoreChannels >> bits);  // of the group
#ifdef TCONV_WALKS_DEPTH
      const int64_t plane = args.out_stride_c;
#else
      const int64_t plane = static_cast<int64_t>(args.out_h) * args.out_w;
#endif
      Storage* const tile_out = args.out + (static_cast<int64_t>(at.group) * group_channels + first_channel) * plane +
                                static_cast<int64_t>(phase.out_first_h) * args.out_w;
      for (int column = lane_column; column < columns; column += columns_at_once) {
        int image, row, col;
        const int exists = extent.pair_at(first_position + block * kStoreColumns + column, &image, &row, &col);
        const int out_col = col * stride + out_column;
        if (exists == 0 || slot >= stride || out_col < 0 || out_col >= args.out_w) continue;
        Storage* to = tile_out + static_cast<int64_t>(row) * args.stride_h * args.out_w + out_col;
#ifdef TCONV_WALKS_DEPTH
        to += args.out_offset(at.sample + image);
#else
        to += static_cast<int64_t>(at.sample + image) * (plan.num_groups * group_channels) * plane;
#endif
        for (int c = 0; c < (kStoreChannels >> bits); ++c) {
          float value;
          asm volatile("ld.shared.f32 %0, [%1];"
                       : "=f"(value)
                       : "r"(buffer + (((c << bits) + slot) * kStorePitch + column) * 4));
          if (first_channel + c < group_channels) to[c * plane] = static_cast<Storage>(value);
        }
      }
    }
  }
}

}  // namespace hopper
}  // namespace cuda
}  // namespace tconv
