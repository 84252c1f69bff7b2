// Epilogue of the Hopper convolution where columns are two apart: even and odd outputs of the same pixels of the line,
// multiplied in one pass, leave interleaved, so that stores fill sectors.
#pragma once

#include "conv_transpose_hopper_epilogue.cuh"
#ifdef TCONV_REDUCES_CHANNELS
#include "conv_transpose_hopper_extremum.cuh"
#endif
#ifdef TCONV_WALKS_DEPTH
#include "conv_transpose_hopper_twin_odd.cuh"
#endif
#ifdef TCONV_SHORT_PASSES
#include "conv_transpose_hopper_twin_quads.cuh"
#endif
#ifdef TCONV_JOINS_QUADS
#include "conv_transpose_hopper_join_quads.cuh"
#endif

namespace tconv {
namespace cuda {
namespace hopper {

// Bias, element-wise chain and stores of one warpgroup's 64 channels x a segment's N pixels x two columns, through the
// warp's buffer as in store_segment. A thread's two pixels of a fragment are four neighbouring outputs.
template <int N, typename Storage>
__device__ __forceinline__ void finish_twin_segment(const HopperArgs<Storage>& args, const Shared& shared,
                                                    const TileCursor& at, int phase_index, int channel0, int segment,
                                                    const ChannelPair& channels, float (&even)[N / 2],
                                                    float (&odd)[N / 2]) {
  constexpr int kPixels = kStoreColumns / 2, kFragments = kPixels / 8;  // of a block of columns
  constexpr int kBlocks = (N + kPixels - 1) / kPixels, kLastPixels = N % kPixels == 0 ? kPixels : N % kPixels;
  static_assert(32 % kLastPixels == 0 && kPixels == 32, "a warp reads whole rows of one or more channels");
  const Plan& plan = args.plan;
  const Phase& phase = plan.phases[phase_index];
  int thread = threadIdx.x;
  asm volatile("" : "+r"(thread));
  const int lane = thread % 32, warp = thread / 32 % 4;
  const int first_channel = channel0 + warp * 16;
  const int channels_left = plan.out_channels_per_group - first_channel;
  if (channels_left <= 0) return;
  const int strip_col = at.strip * plan.tile_w;
  const LineExtent<stacks(N)> extent{min(plan.line_samples, args.batch - at.sample),
                                     phase.out_count_h,
                                     min(plan.tile_w, phase.out_count_w - strip_col),
                                     plan.image_rows,
                                     args.by_pitch,
                                     args.by_image_rows};
  const int odd_cols = plan.phases[phase_index + 1].out_count_w - strip_col;  // as many as even ones, or one less
  const int num_channels = plan.num_groups * plan.out_channels_per_group;
#ifdef TCONV_WALKS_DEPTH
  const int64_t plane = args.out_stride_c;
  Storage* tile_out = args.channel_out(at.group, at.residue, first_channel) +
                      static_cast<int64_t>(phase.out_first_h) * args.out_w + static_cast<int64_t>(strip_col) * 2;
#else
  const int64_t plane = static_cast<int64_t>(args.out_h) * args.out_w;
  Storage* tile_out =
      args.out +
      (at.sample * static_cast<int64_t>(num_channels) + at.group * plan.out_channels_per_group + first_channel) *
          plane +
      static_cast<int64_t>(phase.out_first_h) * args.out_w + static_cast<int64_t>(strip_col) * 2;
#endif
  const bool paired = args.pair_stores && channels_left >= 2 * kStoreChannels;
#ifdef TCONV_SHORT_PASSES
  if constexpr (leaves_from_registers(N)) {
#ifdef TCONV_JOINS_QUADS
    const auto join = [&](int j) {
      if (args.joins) join_fragment<N>(args, shared, channels, at.group, j, even, odd);
    };
    if (args.joins) cp_async_wait<0>();
#endif
    if (paired)
      return store_twin_quads<N>(args, at, extent, channels, tile_out, plane,
                                 at.tile * plan.tile_pixels + segment * plan.segment_pixels, lane,
#ifdef TCONV_JOINS_QUADS
                                 args.result_distance, join,
#endif
                                 even, odd);
  }
#endif
  const uint32_t buffer = shared.stores + thread / 32 * plan.store_bytes_per_warp;
  const uint32_t write_at = buffer + ((lane / 4) * kStorePitch + 4 * (lane % 4)) * 4;
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    // A warp reads a row of one channel at once, or where few pixels are left rows of several.
    const int pixels = N - block * kPixels >= kPixels ? kPixels : kLastPixels;
    const int channels_at_once = N - block * kPixels >= kPixels ? 1 : kPixels / kLastPixels;
    const int rounds = N - block * kPixels >= kPixels ? kStoreChannels : kStoreChannels * kLastPixels / kPixels;
    const int lane_channel = lane / pixels, lane_pixel = lane % pixels;
    const int j0 = block * kFragments, j1 = min(j0 + kFragments, N / 8);
#ifdef TCONV_KEEPS_MASK
    // Without a mask the chain is computed ahead of the buffer, as in other solutions.
    if (args.mask != nullptr) {
      scale_fragments<N>(channels, even, j0, j1);
      scale_fragments<N>(channels, odd, j0, j1);
    } else {
      finish_fragments<N>(args, channels, at.group, even, j0, j1);
      finish_fragments<N>(args, channels, at.group, odd, j0, j1);
    }
#else
    finish_fragments<N>(args, channels, at.group, even, j0, j1);
    finish_fragments<N>(args, channels, at.group, odd, j0, j1);
#endif
#ifdef TCONV_WALKS_DEPTH
    if (!paired) {
      const int position = at.tile * plan.tile_pixels + segment * plan.segment_pixels + block * kPixels;
      const auto store = [&](auto pixels) {
#ifdef TCONV_KEEPS_MASK
        constexpr int kOfPixels = decltype(pixels)::value;
        if (args.mask != nullptr)
          store_odd_twins<kOfPixels, kOfPixels / 8, N, true>(args, at, extent, odd_cols, buffer, write_at, j0, position,
                                                             tile_out, channels_left, even, odd);
        else
          store_odd_twins<kOfPixels, kOfPixels / 8, N, false>(args, at, extent, odd_cols, buffer, write_at, j0,
                                                              position, tile_out, channels_left, even, odd);
#else
        store_odd_twins<decltype(pixels)::value, decltype(pixels)::value / 8, N>(
            args, at, extent, odd_cols, buffer, write_at, j0, position, tile_out, channels_left, even, odd);
#endif
      };
      if (pixels == kPixels)
        store(std::integral_constant<int, kPixels>{});
      else
        store(std::integral_constant<int, kLastPixels>{});
      continue;
    }
#endif
    // A reading lane takes both columns of a pixel in one channel.
    const uint32_t read_at = buffer + (lane_channel * kStorePitch + 2 * lane_pixel) * 4;
    int image, row, col;
    int position = at.tile * plan.tile_pixels + segment * plan.segment_pixels + block * kPixels + lane_pixel;
    asm volatile("" : "+r"(position));  // not earlier: places worked out ahead would not fit the registers
    const bool first = extent.pair_at(position, &image, &row, &col) != 0, second = first && col < odd_cols;
#ifdef TCONV_WALKS_DEPTH
    Storage* to = tile_out + args.out_offset(at.sample + image);
    asm volatile("" : "+l"(to));  // before the rest: all at once would not fit the registers
    to += lane_channel * plane + static_cast<int64_t>(row) * args.stride_h * args.out_w + 2 * col;
#else
    Storage* to = tile_out + lane_channel * plane + static_cast<int64_t>(row) * args.stride_h * args.out_w + 2 * col;
    if constexpr (stacks(N)) to += static_cast<int64_t>(image) * num_channels * plane;
#endif
#pragma unroll
    for (int half = 0; half < 2; ++half, to += kStoreChannels * plane) {
      __syncwarp();
#pragma unroll
      for (int j = j0; j < j1; ++j)
        asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(write_at + (j - j0) * 64),
                     "f"(even[4 * j + 2 * half]), "f"(odd[4 * j + 2 * half]), "f"(even[4 * j + 2 * half + 1]),
                     "f"(odd[4 * j + 2 * half + 1])
                     : "memory");
      __syncwarp();
      if (paired) {
#ifdef TCONV_KEEPS_MASK
        if (args.mask != nullptr)
          store_masked_rows(args, to, first, read_at, rounds, channels_at_once, plane);
        else
          store_rows(to, first, read_at, rounds, channels_at_once, plane);
#else
        store_rows(to, first, read_at, rounds, channels_at_once, plane);
#endif
      } else {
        Storage* at_row = to;
#pragma unroll
        for (int c = 0; c < rounds; ++c, at_row += channels_at_once * plane) {
          float2 columns;
          asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                       : "=f"(columns.x), "=f"(columns.y)
                       : "r"(read_at + c * channels_at_once * kStorePitch * 4));
          const bool real = half * kStoreChannels + lane_channel + c * channels_at_once < channels_left;
          if (real && first) at_row[0] = static_cast<Storage>(columns.x);
          if (real && second) at_row[1] = static_cast<Storage>(columns.y);
        }
      }
    }
  }
}

}  // namespace hopper
}  // namespace cuda
}  // namespace tconv
