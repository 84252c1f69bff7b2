// Outputs of joined columns (joined_columns.h): the rows of a tile are a channel's columns next to each other, so that
// a warp stores whole lines, of up to 4 columns a lane.
#pragma once

#include "conv_transpose_hopper_epilogue.cuh"
#include "conv_transpose_hopper_two_columns.cuh"

namespace tconv {
namespace cuda {
namespace hopper {

// kWidth neighbouring columns, of which `to` is the first, aligned to them.
template <int kWidth, typename Storage>
__device__ __forceinline__ void store_columns(Storage* to, const float (&columns)[kWidth]) {
  struct alignas(kWidth * sizeof(Storage)) {
    Storage values[kWidth];
  } vector;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) vector.values[i] = static_cast<Storage>(columns[i]);
  using Word = std::conditional_t<
      sizeof(vector) == 16, uint4,
      std::conditional_t<sizeof(vector) == 8, uint2, std::conditional_t<sizeof(vector) == 4, unsigned, short>>>;
  const Word word = *reinterpret_cast<const Word*>(&vector);
  if constexpr (kWidth == 1)
    *reinterpret_cast<Word*>(to) = word;  // of a sector that another store may complete
  else
    __stcs(reinterpret_cast<Word*>(to), word);
}

// Where the outputs of a block's columns go, those of columns lane and lane + 32: others ask the lane that has them.
struct JoinedPlaces {
  static constexpr int kEach = kStoreColumns / 32, kNowhere = -kMostJoinedColumns;
  int64_t offsets[kEach];  // of slot 0 in channel 0, in elements
  int columns[kEach];      // of the output, slot 0's; kNowhere or less where there is none

  template <int N, typename Storage>
  __device__ __forceinline__ JoinedPlaces(const HopperArgs<Storage>& args, const TileCursor& at, const Phase& phase,
                                          const LineExtent<stacks(N)>& extent, int lane, int first_position,
                                          int num_columns, std::integral_constant<int, N>) {
    const Plan& plan = args.plan;
    const JoinedColumns& joined = plan.joined;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int column = lane + 32 * i;
      int image, row, col;
      const bool exists = extent.pair_at(first_position + column, &image, &row, &col) != 0 && column < num_columns;
      columns[i] = exists ? (at.strip * plan.tile_w + col) * joined.stride - joined.crop : kNowhere;
#ifdef TCONV_WALKS_DEPTH
      offsets[i] = args.out_offset(at.sample + image);
#else
      offsets[i] = static_cast<int64_t>(at.sample + image) *
                   (plan.num_groups * (plan.out_channels_per_group >> joined.slot_bits())) * args.out_h * args.out_w;
#endif
      offsets[i] += (static_cast<int64_t>(row) * args.stride_h + phase.out_first_h) * args.out_w + columns[i];
    }
  }

  // Every lane's of its own column of a round, all of which are in the same half of the block.
  __device__ __forceinline__ void find(int column, int64_t* offset, int* out_column) const {
    const bool second = kEach == 2 && column >= 32;
    *offset = __shfl_sync(0xFFFFFFFFu, second ? offsets[kEach - 1] : offsets[0], column % 32);
    *out_column = __shfl_sync(0xFFFFFFFFu, second ? columns[kEach - 1] : columns[0], column % 32);
  }
};

// What a warp has in its buffer, kStoreChannels rows of a block's columns, to memory. A lane takes kWidth slots of one
// column at once, its neighbours what lies next to them. to: the first channel in image 0.
template <int kWidth, typename Storage>
__device__ __forceinline__ void store_joined_rows(const HopperArgs<Storage>& args, const JoinedPlaces& places,
                                                  uint32_t buffer, int lane, int channels, Storage* to_channel) {
  constexpr int kShift = kWidth == 4 ? 2 : kWidth == 2 ? 1 : 0, kAtOnce = kWidth == 1 ? 4 : 2;
  const JoinedColumns& joined = args.plan.joined;
  const int bits = joined.slot_bits(), rounds = (kStoreColumns << bits) / (32 * kWidth);
#ifdef TCONV_WALKS_DEPTH
  const int64_t plane = args.out_stride_c;
#else
  const int64_t plane = static_cast<int64_t>(args.out_h) * args.out_w;
#endif
#pragma unroll 1
  for (int first = 0; first < rounds; first += kAtOnce) {  // a whole number of turns
    Storage* to[kAtOnce];
    uint32_t read_at[kAtOnce];
    bool wanted[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int place = (first + k) * 32 + lane;  // digits: columns side by side, input columns
      const int slot = (place << kShift) & (joined.slots - 1), column = place >> (bits - kShift);
      int64_t offset;
      int out_column;
      places.find(column, &offset, &out_column);
      out_column += slot;
      read_at[k] = buffer + (slot * kStorePitch + column) * 4;
      to[k] = to_channel + offset + slot;
      wanted[k] = slot < joined.stride && out_column >= 0 && out_column < args.out_w;
    }
    const auto store_channel = [&] {
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        float values[kWidth];
#pragma unroll
        for (int i = 0; i < kWidth; ++i)
          asm volatile("ld.shared.f32 %0, [%1];" : "=f"(values[i]) : "r"(read_at[k] + i * kStorePitch * 4));
        if (wanted[k]) store_columns<kWidth>(to[k], values);
        read_at[k] += joined.slots * kStorePitch * 4;
        to[k] += plane;
      }
    };
    int channel = 0;
#pragma unroll 1
    for (; channel + 2 <= channels; channel += 2) {
      store_channel();
      store_channel();
    }
    if (channel < channels) store_channel();
  }
}

// Bias, element-wise chain and stores of one warpgroup's 64 rows x one segment, through a buffer of each warp:
// fragments in, the columns of one channel out, 32 at once.
template <int N, typename Storage>
__device__ __forceinline__ void finish_joined_segment(const HopperArgs<Storage>& args, const Shared& shared,
                                                      const TileCursor& at, int phase_index, int channel0, int segment,
                                                      const ChannelPair& channels, float (&acc)[N / 2]) {
  const Plan& plan = args.plan;
  const Phase& phase = plan.phases[phase_index];
  if constexpr (sizeof(Storage) == 2)
    if (plan.joined.apart) return finish_two_columns<N>(args, shared, at, phase, channel0, segment, channels, acc);
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
  const bool aligned = reinterpret_cast<uintptr_t>(args.out) % (plan.joined.width * sizeof(Storage)) == 0;
  const int store_width = aligned ? plan.joined.width : 1;
  const uint32_t write_at = buffer + ((thread % 32 / 4) * kStorePitch + 2 * (thread % 4)) * 4;
  constexpr int kBlocks = (N + kStoreColumns - 1) / kStoreColumns, kFragments = kStoreColumns / 8;
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    const int columns = min(kStoreColumns, N - block * kStoreColumns);
    finish_fragments<N>(args, channels, at.group, acc, block * kFragments, min((block + 1) * kFragments, N / 8));
    int lane = thread % 32;
    asm volatile("" : "+r"(lane));  // not earlier: what follows from it would not fit the registers
    const JoinedPlaces places(args, at, phase, extent, lane, first_position + block * kStoreColumns, columns,
                              std::integral_constant<int, N>{});
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      __syncwarp();
#pragma unroll
      for (int j = block * kFragments; j < (block + 1) * kFragments && j < N / 8; ++j)
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(write_at + j % kFragments * 32),
                     "f"(acc[4 * j + 2 * half]), "f"(acc[4 * j + 2 * half + 1])
                     : "memory");
      __syncwarp();
      const int bits = plan.joined.slot_bits(), group_channels = plan.out_channels_per_group >> bits;
      const int first_channel = (channel0 + thread / 32 % 4 * 16 + half * kStoreChannels) >> bits;  // of the group
#ifdef TCONV_WALKS_DEPTH
      Storage* const to = args.channel_out(0, 0, at.group * group_channels + first_channel);
#else
      Storage* const to =
          args.out + static_cast<int64_t>(at.group * group_channels + first_channel) * args.out_h * args.out_w;
#endif
      const int channels_here = min(kStoreChannels >> bits, group_channels - first_channel);
      const auto store = [&](auto width) {
        store_joined_rows<decltype(width)::value>(args, places, buffer, lane, channels_here, to);
      };
      if (store_width == 4)
        store(std::integral_constant<int, 4>{});
      else if (store_width == 2)
        store(std::integral_constant<int, 2>{});
      else
        store(std::integral_constant<int, 1>{});
    }
  }
}

// Where the kernel is: worked out anew, or, of what finish_two_columns stores, as its own cursor says, whose registers
// that has room for.
template <bool kMayBeApart>
__device__ __forceinline__ TileCursor finishing_place(const Plan& plan, const TileCursor& at, int chunk) {
  if constexpr (kMayBeApart)
    if (plan.joined.apart) return at;
  return TileCursor(plan, chunk);
}

// Of columns that are joined, and that are not.
template <int N, bool kPooled, typename Storage>
__device__ __forceinline__ void finish_any_segment(const HopperArgs<Storage>& args, const Shared& shared,
                                                   const TileCursor& at, int phase_index, int channel0, int segment,
                                                   const ChannelPair& channels, float (&acc)[N / 2]) {
  const bool joined = stores_joined(N) && args.plan.joined.slots > 0;
  if constexpr (stores_joined(N))
    if (joined) finish_joined_segment<N>(args, shared, at, phase_index, channel0, segment, channels, acc);
  if (!joined) finish_segment<N, kPooled, Storage>(args, shared, at, phase_index, channel0, segment, channels, acc);
}

}  // namespace hopper
}  // namespace cuda
}  // namespace tconv
