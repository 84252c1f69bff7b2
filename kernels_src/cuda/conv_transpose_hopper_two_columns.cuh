// 16-bit outputs of columns joined by twos (joined_columns.h). Both of a channel's rows in a tile are a thread's, so
// that it holds four outputs next to each other. They go through a buffer of its warp, which is laid out as the result
// is: a row of outputs lies there as far past a multiple of 32 bytes as in memory, and is stored 16 bytes a thread,
// whole sectors together, however wide the rows are.
#pragma once

#include "conv_transpose_hopper_epilogue.cuh"
#include "mma_sync.cuh"

namespace tconv {
namespace cuda {
namespace hopper {

// In fp32 lanes would meet a bank of the buffer four times.
struct TwoColumnsConfig {
  static constexpr int kBytes = 2;                       // of an output
  static constexpr int kChannels = 8, kLanes = 4;        // of a warp; of a channel
  static constexpr int kVector = 16 / kBytes;            // outputs
  static constexpr int kSector = 32 / kBytes;            // outputs
  static constexpr int kColumns = 64;                    // at a time, two outputs each
  static constexpr int kPitch = 2 * kColumns + kSector;  // outputs from channel to channel of the buffer
  static_assert(kChannels * kPitch * kBytes <= kStoreBytesPerWarp, "the buffer holds them");
};

template <typename Storage>
__device__ __forceinline__ void store_shared_output(uint32_t at, float value) {
  const Storage rounded = static_cast<Storage>(value);
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(at), "h"(*reinterpret_cast<const unsigned short*>(&rounded)) : "memory");
}

template <typename Storage>
__device__ __forceinline__ Storage load_shared_output(uint32_t at) {
  unsigned short bits;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(bits) : "r"(at));
  return *reinterpret_cast<const Storage*>(&bits);
}

// Stores what lies at `begin` to `end` of a channel's part of the buffer, by its lanes. to: where the part's start
// would go, a multiple of 32 bytes.
template <typename Storage>
__device__ __forceinline__ void store_run(Storage* to, uint32_t part, int begin, int end, int lane) {
  using Config = TwoColumnsConfig;
  constexpr int kVector = Config::kVector, kLanes = Config::kLanes;
  constexpr uint32_t kBytes = Config::kBytes;
  const int first_whole = min((begin + kVector - 1) / kVector * kVector, end),
            last_whole = max(end / kVector * kVector, first_whole);
#pragma unroll
  for (int i = 0; i < (Config::kPitch / kVector + kLanes - 1) / kLanes; ++i) {
    const int at = (i * kLanes + lane) * kVector;
    if (at >= first_whole && at < last_whole)
      __stcs(reinterpret_cast<uint4*>(to + at), load_shared_16(part + at * kBytes));
  }
#pragma unroll
  for (int i = 0; i < kVector / kLanes; ++i) {
    const int head = begin + i * kLanes + lane, tail = last_whole + i * kLanes + lane;
    if (head < first_whole) to[head] = load_shared_output<Storage>(part + head * kBytes);
    if (tail < end) to[tail] = load_shared_output<Storage>(part + tail * kBytes);
  }
}

// Bias, element-wise chain and stores of one warpgroup's 64 rows x one segment.
template <int N, typename Storage>
__device__ __forceinline__ void finish_two_columns(const HopperArgs<Storage>& args, const Shared& shared,
                                                   const TileCursor& at, const Phase& phase, int channel0, int segment,
                                                   const ChannelPair& channels, float (&acc)[N / 2]) {
  using Config = TwoColumnsConfig;
  constexpr int kBlocks = (N + Config::kColumns - 1) / Config::kColumns, kFragments = Config::kColumns / 8;
  const Plan& plan = args.plan;
  int thread = threadIdx.x;
  asm volatile("" : "+r"(thread));
  const int lane = thread % 32, warp = thread / 32 % 4, crop = plan.joined.crop;
  const uint32_t buffer = shared.stores + thread / 32 * plan.store_bytes_per_warp;
  const int images = min(plan.line_samples, args.batch - at.sample);
  const int columns = min(plan.tile_w, phase.out_count_w - at.strip * plan.tile_w);
  const int group_channels = plan.out_channels_per_group / 2, first_channel = channel0 / 2 + warp * Config::kChannels;
  const bool real = first_channel + lane / Config::kLanes < group_channels;
  const uint32_t part = buffer + lane / Config::kLanes * (Config::kPitch * static_cast<uint32_t>(Config::kBytes));
#ifdef TCONV_WALKS_DEPTH
  const int64_t plane = args.out_stride_c;
  Storage* const of_channel =
      args.channel_out(0, 0, at.group * group_channels + first_channel) + lane / Config::kLanes * plane;
#else
  const int64_t plane = static_cast<int64_t>(args.out_h) * args.out_w;
  Storage* const of_channel = args.out + (at.group * group_channels + first_channel + lane / Config::kLanes) * plane;
#endif
  const int first_position = at.tile * plan.tile_pixels + segment * plan.segment_pixels;
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    constexpr int kAll = N / 8;
    const int j0 = block * kFragments, j1 = min(j0 + kFragments, kAll);
    finish_fragments<N>(args, channels, at.group, acc, j0, j1);
    const int block_end = first_position + 8 * j1;
#pragma unroll 1
    for (int position = first_position + 8 * j0, run_end; position < block_end; position = run_end) {
      const int line_row = static_cast<int>(args.by_pitch.quotient(position));
      run_end = min(block_end, (line_row + 1) * plan.pitch);
      const int image = static_cast<int>(args.by_image_rows.quotient(line_row));
      const int row = line_row - image * plan.image_rows, column = position - line_row * plan.pitch;
      if (image >= images || row >= phase.out_count_h || column >= columns || first_channel >= group_channels) continue;
      const int of_row = 2 * (at.strip * plan.tile_w + column) - crop;  // output 0 of the run
#ifdef TCONV_WALKS_DEPTH
      const int64_t of_image = args.out_offset(at.sample + image);
#else
      const int64_t of_image = static_cast<int64_t>(at.sample + image) * (plan.num_groups * group_channels) * plane;
#endif
      Storage* const to = of_channel + (of_image + of_row +
                                        (static_cast<int64_t>(row) * args.stride_h + phase.out_first_h) * args.out_w);
      const int shift = static_cast<int>(reinterpret_cast<uintptr_t>(to) / Config::kBytes % Config::kSector);
      const int behind = first_position + 2 * (lane % 4) - position;  // fragment 0's first column of this lane
      const uint32_t write_at = part + static_cast<uint32_t>((shift + 2 * behind) * Config::kBytes);
      __syncwarp();  // the run before has been read
#pragma unroll
      for (int j = j0; j < j1; ++j) {
        const int from = behind + 8 * j;
        if (from < 0 || from >= run_end - position) continue;
#pragma unroll
        for (int e = 0; e < 4; ++e)
          store_shared_output<Storage>(write_at + (16 * j + e) * static_cast<uint32_t>(Config::kBytes),
                                       acc[4 * j + e / 2 + 2 * (e % 2)]);
      }
      __syncwarp();
      const int count = min(2 * min(run_end - position, columns - column), args.out_w - of_row);
      if (real) store_run(to - shift, part, shift + max(-of_row, 0), shift + count, lane % Config::kLanes);
    }
  }
}

}  // namespace hopper
}  // namespace cuda
}  // namespace tconv
