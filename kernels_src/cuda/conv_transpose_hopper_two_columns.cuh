// 16-bit outputs of columns joined by twos (joined_columns.h). Both of a channel's rows in a tile are a thread's, so
// that it holds four outputs next to each other. They go through a buffer of its warp as whole words, wherever their
// rows end. Runs of a row leave it 16 bytes a thread, whole sectors together: where a row's first output lies in half
// a word of memory, each word is put together from two of the buffer's.
#pragma once

#include "conv_transpose_hopper_epilogue.cuh"
#include "mma_sync.cuh"

namespace tconv {
namespace cuda {
namespace hopper {

// Is the kernel compiled for them?
template <int N, bool kTwin, typename Storage>
__device__ constexpr bool may_be_apart() {
  return !kTwin && stores_joined(N) && sizeof(Storage) == 2;
}

// In fp32 lanes would meet a bank of the buffer four times.
struct TwoColumnsConfig {
  static constexpr int kBytes = 2;                 // of an output
  static constexpr int kChannels = 8, kLanes = 4;  // of a warp; of a channel
  static constexpr int kVector = 16 / kBytes;      // outputs
  static constexpr int kWords = 4;                 // of a vector
  static constexpr int kSector = 32 / kBytes;      // outputs
  static constexpr int kColumns = kTwoColumns;     // at a time, two outputs each, which are a word
  static constexpr int kOutputs = 2 * kColumns;    // of a channel in the buffer
  static constexpr int kRound = kLanes * kVector;  // outputs that the lanes of a channel take at once
  static constexpr int kRounds = (kOutputs + kSector - 1 + kRound - 1) / kRound;
  static constexpr int kAhead = kSector / 2;  // words: a run's first sector may begin so far ahead of it
  // The word behind the last that is read of a channel, for a run that ends with the buffer.
  static constexpr int kEnd = (kOutputs + kSector - 1 + kRound - kVector) / 2 + kWords + 1;

  // Words from the buffer's begin to a channel's part: a warp that reads a word of each vector meets every bank once.
  static __host__ __device__ constexpr int part(int channel) {
    return kAhead + channel * kColumns + channel % 4 + channel / 4 * 16;
  }
};
static_assert((TwoColumnsConfig::part(TwoColumnsConfig::kChannels - 1) + TwoColumnsConfig::kEnd) * 4 <=
                  kTwoColumnsBytesPerWarp,
              "the buffer holds what is read of it");

// Two neighbouring outputs.
template <typename Storage>
__device__ __forceinline__ void store_shared_outputs(uint32_t at, float first, float second) {
  struct alignas(4) {
    Storage values[2];
  } both = {{static_cast<Storage>(first), static_cast<Storage>(second)}};
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(*reinterpret_cast<const uint32_t*>(&both)) : "memory");
}

__device__ __forceinline__ uint32_t load_shared_word(uint32_t at) {
  uint32_t word;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(at));
  return word;
}

template <typename Storage>
__device__ __forceinline__ Storage load_shared_output(uint32_t at) {
  unsigned short bits;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(bits) : "r"(at));
  return *reinterpret_cast<const Storage*>(&bits);
}

// Stores outputs `begin` to `end` of a channel's part of the buffer, the same of every channel, by its lanes. to: where
// output 0 would go.
template <typename Storage>
__device__ __forceinline__ void store_run(Storage* to, uint32_t part, int begin, int end, int lane) {
  using Config = TwoColumnsConfig;
  constexpr int kVector = Config::kVector, kLanes = Config::kLanes, kRounds = Config::kRounds, kWords = Config::kWords;
  constexpr int kEnds = 2 * (kVector - 1), kEndRounds = (kEnds + kLanes - 1) / kLanes;
  constexpr int kAtOnce = 2;
  // Of the sector that `begin` is in.
  const int first =
      begin - static_cast<int>((reinterpret_cast<uintptr_t>(to) / Config::kBytes + begin) % Config::kSector);
  const int whole = min(first + (begin - first + kVector - 1) / kVector * kVector, end),
            behind = whole + max(end - whole, 0) / kVector * kVector;
  const uint32_t halves = first % 2 != 0 ? 0x5432 : 0x3210;
  const int mine = first + lane * kVector;
  const uint32_t read_at = part + (mine >> 1) * 4;
  const auto reaches = [&](int round) { return round * Config::kRound < end - begin + Config::kSector - 1; };
  // Several reads at a time before the stores of what they read, that none waits for one of those.
#pragma unroll
  for (int first_round = 0; first_round < kRounds; first_round += kAtOnce) {
    if (!reaches(first_round)) break;
    uint32_t words[kAtOnce][kWords + 1];
#pragma unroll
    for (int i = 0; i < kAtOnce && first_round + i < kRounds; ++i)
      if (reaches(first_round + i))
#pragma unroll
        for (int k = 0; k <= kWords; ++k)
          words[i][k] = load_shared_word(read_at + ((first_round + i) * kLanes * kWords + k) * 4);
#pragma unroll
    for (int i = 0; i < kAtOnce && first_round + i < kRounds; ++i) {
      const int at = mine + (first_round + i) * Config::kRound;
      if (!reaches(first_round + i) || at < whole || at >= behind) continue;
      const uint32_t (&of)[kWords + 1] = words[i];
      __stcs(reinterpret_cast<uint4*>(to + at),
             make_uint4(__byte_perm(of[0], of[1], halves), __byte_perm(of[1], of[2], halves),
                        __byte_perm(of[2], of[3], halves), __byte_perm(of[3], of[4], halves)));
    }
  }
  // What lies ahead of the whole vectors and behind them.
  const int at_begin = whole - begin, of_both = at_begin + end - behind;
  const auto place = [&](int which) { return which < at_begin ? begin + which : behind + which - at_begin; };
  Storage ends[kEndRounds];
#pragma unroll
  for (int i = 0; i < kEndRounds; ++i)
    ends[i] = load_shared_output<Storage>(part + place(i * kLanes + lane) * Config::kBytes);
#pragma unroll
  for (int i = 0; i < kEndRounds; ++i)
    if (i * kLanes + lane < of_both) to[place(i * kLanes + lane)] = ends[i];
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
  const int lane = thread % 32, warp = thread / 32 % 4, crop = plan.joined.crop, channel = lane / Config::kLanes;
  const int group_channels = plan.out_channels_per_group / 2, first_channel = channel0 / 2 + warp * Config::kChannels;
  const bool real = first_channel + channel < group_channels;
  const int images = min(plan.line_samples, args.batch - at.sample);
  const int columns = min(plan.tile_w, phase.out_count_w - at.strip * plan.tile_w);
  const uint32_t part =
      shared.stores + thread / 32 * plan.store_bytes_per_warp + static_cast<uint32_t>(Config::part(channel)) * 4;
#ifdef TCONV_WALKS_DEPTH
  const int64_t plane = args.out_stride_c;
  Storage* const of_channel = args.channel_out(0, 0, at.group * group_channels + first_channel) + channel * plane;
#else
  const int64_t plane = static_cast<int64_t>(args.out_h) * args.out_w;
  Storage* const of_channel = args.out + (at.group * group_channels + first_channel + channel) * plane;
#endif
#ifdef TCONV_WALKS_DEPTH
  const auto of_image = [&](int of_line) { return of_channel + args.out_offset(at.sample + of_line); };
#else
  const auto of_image = [&](int of_line) {
    return of_channel + static_cast<int64_t>(at.sample + of_line) * (plan.num_groups * group_channels) * plane;
  };
#endif
  // Where a block's next run begins.
  const int first_position = at.tile * plan.tile_pixels + segment * plan.segment_pixels;
  const int line_row = static_cast<int>(args.by_pitch.quotient(first_position));
  int image = static_cast<int>(args.by_image_rows.quotient(line_row));
  int row = line_row - image * plan.image_rows, column = first_position - line_row * plan.pitch;
  Storage* to_image = of_image(image);
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    constexpr int kAll = N / 8;
    const int j0 = block * kFragments, j1 = min(j0 + kFragments, kAll);
    finish_fragments<N>(args, channels, at.group, acc, j0, j1);
    const uint32_t write_at = part + lane % Config::kLanes * 8;  // two columns of fragment 0
    __syncwarp();                                                // the block before has been read
#pragma unroll
    for (int j = j0; j < j1; ++j) {
      store_shared_outputs<Storage>(write_at + (j - j0) * 32, acc[4 * j], acc[4 * j + 2]);
      store_shared_outputs<Storage>(write_at + (j - j0) * 32 + 4, acc[4 * j + 1], acc[4 * j + 3]);
    }
    __syncwarp();
#pragma unroll 1
    for (int from = 0, run_end; from < 8 * (j1 - j0); from = run_end) {
      run_end = min(8 * (j1 - j0), from + plan.pitch - column);
      if (image < images && row < phase.out_count_h && column < columns && real) {
        const int of_row = 2 * (at.strip * plan.tile_w + column) - crop;  // output 0 of the run
        const int begin = max(-of_row, 0), end = min(2 * min(run_end - from, columns - column), args.out_w - of_row);
        const int64_t of_out_row = static_cast<int64_t>(row * args.stride_h + phase.out_first_h) * args.out_w;
        if (begin < end)
          store_run(to_image + of_out_row + (of_row - 2 * from), part, 2 * from + begin, 2 * from + end,
                    lane % Config::kLanes);
      }
      column += run_end - from;
      if (column < plan.pitch) continue;
      column = 0;
      if (++row < plan.image_rows) continue;
      row = 0;
      to_image = of_image(++image);
    }
  }
}

}  // namespace hopper
}  // namespace cuda
}  // namespace tconv
