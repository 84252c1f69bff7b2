// Epilogue of the Hopper convolution: accumulators through bias and element-wise chain to moments and NCHW outputs.
#pragma once

#include <type_traits>

#include "conv_transpose_hopper_args.cuh"
#include "conv_transpose_hopper_pool.cuh"

namespace tconv {
namespace cuda {
namespace hopper {

template <typename Storage>
__device__ __forceinline__ void store_pair(Storage* at, float2 pair) {
  if constexpr (sizeof(Storage) == 4) {
    __stcs(reinterpret_cast<float2*>(at), pair);  // not read again soon: the cache is for the input
  } else {
    Storage values[2] = {static_cast<Storage>(pair.x), static_cast<Storage>(pair.y)};
    __stcs(reinterpret_cast<unsigned*>(at), *reinterpret_cast<unsigned*>(values));
  }
}

// Where a position of a line lies, and what of it is output: the rest is between rows, or beyond the image.
template <bool kStacks>
struct LineExtent {
  int images, rows, cols;  // rows of an image
  int image_rows;
  FastDivisor by_pitch, by_image_rows;

  // 3: outputs at `position`, which is even as the pitch is, and at the next exist, 1: the first does, 0: none.
  __device__ __forceinline__ int pair_at(int position, int* image, int* row, int* col) const {
    *row = static_cast<int>(by_pitch.quotient(position));
    *col = position - *row * static_cast<int>(by_pitch.divisor);
    *image = 0;
    if constexpr (kStacks) {
      *image = static_cast<int>(by_image_rows.quotient(*row));
      *row -= *image * image_rows;
      if (*image >= images) return 0;
    }
    if (*row >= rows || *col >= cols) return 0;
    return *col + 1 < cols ? 3 : 1;
  }
};

// Sums over values of one channel, as deviations from the first, whose distance from the mean is the set's spread.
// Source: Chan, Golub, LeVeque, "Algorithms for computing the sample variance", 1983 (shifted data).
struct ShiftedSums {
  float shift = 0.0f, sum = 0.0f, squares = 0.0f;

  __device__ __forceinline__ void add(float value, bool counts) {
    const float d = counts ? value - shift : 0.0f;
    sum += d;
    squares = fmaf(d, d, squares);
  }

  // Moments of what a quad of lanes has added, `count` values by this lane; to the last bit in the first lane alone.
  __device__ __forceinline__ Moments quad_moments(int count) const {
    float n = static_cast<float>(count);
    const float mean_shifted = count > 0 ? sum / n : 0.0f;
    const float within = squares - sum * mean_shifted;
    float mean = shift + mean_shifted, m2 = within < 0.0f ? 0.0f : within;  // NaN stays
#pragma unroll
    for (int other = 1; other <= 2; other *= 2) {
      const float other_n = __shfl_xor_sync(0xFFFFFFFFu, n, other);
      const float delta = __shfl_xor_sync(0xFFFFFFFFu, mean, other) - mean;
      const float other_m2 = __shfl_xor_sync(0xFFFFFFFFu, m2, other);
      const float total = n + other_n;
      const float share = other_n > 0.0f ? other_n / total : 0.0f;
      if (n == 0.0f || other_n > 0.0f) {
        m2 += other_m2 + delta * delta * n * share;
        mean += delta * share;
      }
      n = total;
    }
    return Moments{n, mean, m2};
  }
};

// What the epilogue needs to know of a thread's two channels, 8 apart. Loaded while the last products are under way.
struct ChannelPair {
  int first;  // of the group; the other is 8 behind
  float inv_scale[2], bias[2];

  template <typename Storage>
  __device__ __forceinline__ void load(const HopperArgs<Storage>& args, int group, int channel0) {
    const Plan& plan = args.plan;
    int thread = threadIdx.x;
    // What follows from it is worked out here, and takes no registers while multiplying.
    asm volatile("" : "+r"(thread));
    first = channel0 + thread / 32 % 4 * 16 + thread % 32 / 4;
    const int padded = plan.num_sweeps * plan.blocks_per_sweep * kBlockOC;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      inv_scale[half] = args.inv_scale[group * padded + first + half * 8];
      bias[half] = channel_bias<float>(args.epilogue, channel(plan, group, half));
    }
  }

  __device__ __forceinline__ bool real(const Plan& plan, int half) const {
#ifdef TCONV_PAIRS_ROWS
    if (plan.pairs.out > 0) return first % kPairOut + half * 8 < plan.pairs.channels;
#endif
    return first + half * 8 < plan.out_channels_per_group;
  }

  // Of all; where there is none, one that is.
  __device__ __forceinline__ int channel(const Plan& plan, int group, int half) const {
#ifdef TCONV_PAIRS_ROWS
    if (plan.pairs.out > 0) return real(plan, half) ? first % kPairOut + half * 8 : 0;
#endif
#ifdef TCONV_JOINS_COLUMNS
    return plan.joined.channel_of_all(group, first + half * 8, plan.out_channels_per_group);
#else
    return group * plan.out_channels_per_group + (real(plan, half) ? first + half * 8 : 0);
#endif
  }
};

// Bias and element-wise chain of the accumulators in fragments j0 to j1 of 8 columns.
template <int N, typename Storage>
__device__ __forceinline__ void finish_fragments(const HopperArgs<Storage>& args, const ChannelPair& channels,
                                                 int group, float (&acc)[N / 2], int j0, int j1) {
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int j = j0; j < j1; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& value = acc[4 * j + 2 * half + e];
        value = Epilogue::apply<float, Storage>(value * channels.inv_scale[half] + channels.bias[half], args.epilogue,
                                                channels.channel(args.plan, group, half));
      }
}

// Bias, element-wise chain and moments of a segment, a block of kStoreColumns columns at a time.
template <int N, bool kPooled, typename Storage>
struct SegmentValues {
  static constexpr int kBlocks = (N + kStoreColumns - 1) / kStoreColumns;
  static constexpr int kFragments = kStoreColumns / 8;  // of 8 columns, in a block

  const HopperArgs<Storage>& args;
  const LineExtent<stacks(N)>& extent;
  const ChannelPair& channels;
  int group, first_position, lane;
  int row, col;  // of this lane's first pair of columns in the next block
  ShiftedSums sums[2];
  int count = 0;  // of either channel

  __device__ __forceinline__ SegmentValues(const HopperArgs<Storage>& a, const LineExtent<stacks(N)>& e,
                                           const ChannelPair& c, int of_group, int position, int of_lane)
      : args(a), extent(e), channels(c), group(of_group), first_position(position), lane(of_lane) {
    int image;
    extent.pair_at(first_position + 2 * (lane % 4), &image, &row, &col);
    if (image > 0) row = extent.rows;  // moments are wanted of the only image, and a tile may end far behind it
  }

  // All blocks, in order.
  __device__ __forceinline__ void finish(float (&acc)[N / 2], int block) {
    const int j0 = block * kFragments, j1 = min(j0 + kFragments, N / 8);
    finish_fragments<N>(args, channels, group, acc, j0, j1);
    if (args.partials != nullptr) add_moments(acc, j0, j1);
  }

  __device__ __forceinline__ void add_moments(const float (&acc)[N / 2], int j0, int j1) {
    // Bits 2(j - j0) + e: is column 8j + 2(lane%4) + e an output of this segment?
    uint32_t valid = 0;
#pragma unroll
    for (int j = j0; j < j1; ++j) {
      uint32_t pair = row >= extent.rows || col >= extent.cols ? 0 : col + 1 < extent.cols ? 3 : 1;
      if (kPooled && 8 * j >= args.plan.segment_pixels) pair = 0;  // the next segment's
      valid |= pair << (2 * (j - j0));
      col += 8;  // at most the pitch
      if (col >= args.plan.pitch) {
        col -= args.plan.pitch;
        ++row;
      }
    }
    const uint32_t all = (1u << (2 * (j1 - j0))) - 1;
    if (__all_sync(0xFFFFFFFFu, valid == all)) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (count == 0) sums[half].shift = acc[4 * j0 + 2 * half];
#pragma unroll
        for (int j = j0; j < j1; ++j)
#pragma unroll
          for (int e = 0; e < 2; ++e) sums[half].add(acc[4 * j + 2 * half + e], true);
      }
    } else {
      if (count == 0) {
#pragma unroll
        for (int j = j1 - 1; j >= j0; --j)
#pragma unroll
          for (int half = 0; half < 2; ++half)
            if (valid >> (2 * (j - j0)) & 1) sums[half].shift = acc[4 * j + 2 * half];
      }
#pragma unroll
      for (int j = j0; j < j1; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const bool counts = valid >> (2 * (j - j0) + e) & 1;
          sums[0].add(acc[4 * j + e], counts);
          sums[1].add(acc[4 * j + 2 + e], counts);
        }
    }
    count += __popc(valid);
  }

  // After all blocks. The plan keeps entries below 2^31.
  __device__ __forceinline__ void store_moments(const TileCursor& at, int phase, int segment) const {
    const Plan& plan = args.plan;
    const int tile = (at.strip * plan.num_phases + phase) * plan.num_tiles + at.tile;
    const int row = at.sample * static_cast<int>(plan.partials_per_sample()) + tile * plan.num_segments + segment;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Moments moments = sums[half].quad_moments(count);
      if (lane % 4 == 0 && channels.real(plan, half))
        args.partials[row * (plan.num_groups * plan.out_channels_per_group) + channels.channel(plan, group, half)] =
            moments;
    }
  }
};

// kStoreChannels rows of pairs from the warp's buffer to memory, every channels_at_once-th by this lane. All are read
// before the first is stored, so that none waits for another.
template <typename Storage>
__device__ __forceinline__ void store_rows(Storage* to, bool wanted, uint32_t read_at, int rounds, int channels_at_once,
                                           int64_t plane) {
  float2 rows[kStoreChannels];
#pragma unroll
  for (int c = 0; c < rounds; ++c)
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(rows[c].x), "=f"(rows[c].y)
                 : "r"(read_at + c * channels_at_once * kStorePitch * 4));
#pragma unroll
  for (int c = 0; c < rounds; ++c)
    if (wanted) store_pair(to + c * (channels_at_once * plane), rows[c]);
}

// Finishes and stores a warp's 16 channels x N pixels through its buffer: fragments in, rows of a channel out, so that
// stores cover whole sectors. What a block of columns needs is worked out while the stores of the one before drain.
template <int N, typename Storage>
__device__ __forceinline__ void store_segment(const HopperArgs<Storage>& args, const Shared& shared,
                                              const TileCursor& at, const Phase& phase, int channel0, int thread,
                                              SegmentValues<N, false, Storage>& values, float (&acc)[N / 2]) {
  constexpr bool kSpreads = stacks(N);  // the code for it has a price where it is not needed
  const Plan& plan = args.plan;
  const LineExtent<stacks(N)>& extent = values.extent;
  const int lane = thread % 32, warp = thread / 32 % 4;
#ifdef TCONV_PAIRS_ROWS
  const bool paired = plan.pairs.out > 0;
  const int num_channels = paired ? plan.pairs.channels : plan.num_groups * plan.out_channels_per_group;
#else
  const int num_channels = plan.num_groups * plan.out_channels_per_group;
#endif
  const uint32_t buffer = shared.stores + thread / 32 * plan.store_bytes_per_warp;
  const uint32_t write_at = buffer + ((lane / 4) * kStorePitch + 2 * (lane % 4)) * 4;
#ifdef TCONV_WALKS_DEPTH
  const int64_t plane = args.out_stride_c;
#else
  const int64_t plane = static_cast<int64_t>(args.out_h) * args.out_w;
#endif
#ifdef TCONV_PAIRS_ROWS
  const bool second_row = paired && channel0 + warp * 16 >= plan.pairs.out;
  const int first_channel = channel0 + warp * 16 - (second_row ? plan.pairs.out : 0);
#else
  const int first_channel = channel0 + warp * 16;
#endif
#ifdef TCONV_WALKS_DEPTH
  Storage* tile_out = args.channel_out(at.group, at.residue, first_channel) +
                      static_cast<int64_t>(phase.out_first_h) * args.out_w +
                      static_cast<int64_t>(at.strip) * plan.tile_w * args.stride_w + phase.out_first_w;
#else
  Storage* tile_out =
      args.out +
      (at.sample * static_cast<int64_t>(num_channels) + at.group * plan.out_channels_per_group + first_channel) *
          plane +
      static_cast<int64_t>(phase.out_first_h) * args.out_w +
      static_cast<int64_t>(at.strip) * plan.tile_w * args.stride_w + phase.out_first_w;
#endif
#ifdef TCONV_PAIRS_ROWS
  if (second_row) tile_out += args.out_w;
  const int channels_left = (paired ? plan.pairs.channels : plan.out_channels_per_group) - first_channel;
#else
  const int channels_left = plan.out_channels_per_group - first_channel;
#endif
  // Every pair is whole or absent, every channel exists: stores need no branches, and none waits for another.
  const bool whole = args.pair_stores && extent.cols % 2 == 0 && channels_left >= 2 * kStoreChannels;
#pragma unroll
  for (int block = 0; block < values.kBlocks; ++block) {
    constexpr int kFragments = values.kFragments;
    // A reading lane takes two columns of one channel: a warp a row, or of few columns half a warp. They are
    // neighbours, or where a stride lies between half a row apart, so that what a warp stores at once lies closer.
    const int columns = min(kStoreColumns, N - block * kStoreColumns);
    const int row_lanes = columns > 32 ? 32 : 16, channels_at_once = 32 / row_lanes,
              rounds = kStoreChannels / channels_at_once;
    const int lane_channel = lane / row_lanes;
    const int apart = kSpreads && args.stride_w > 1 ? row_lanes : 1,
              lane_column = (apart > 1 ? 1 : 2) * (lane % row_lanes);
    const uint32_t read_at = buffer + (lane_channel * kStorePitch + lane_column) * 4;
    values.finish(acc, block);
    int image, row, col;
    int position = values.first_position + block * kStoreColumns + lane_column;
    asm volatile("" : "+r"(position));  // not earlier: places worked out ahead would not fit the registers
    int pair = extent.pair_at(position, &image, &row, &col);
    if (lane_column >= columns) pair = 0;
    bool second = pair == 3;
    int64_t to_second = args.stride_w;
    if (kSpreads && apart > 1) {
      int other_image, other_row, other_col;
      second =
          extent.pair_at(position + apart, &other_image, &other_row, &other_col) != 0 && lane_column + apart < columns;
#ifdef TCONV_WALKS_DEPTH
      to_second = args.out_offset(at.sample + other_image) - args.out_offset(at.sample + image) +
                  static_cast<int64_t>(other_row - row) * args.stride_h * args.out_w +
                  static_cast<int64_t>(other_col - col) * args.stride_w;
#else
      to_second = static_cast<int64_t>(other_image - image) * num_channels * plane +
                  static_cast<int64_t>(other_row - row) * args.stride_h * args.out_w +
                  static_cast<int64_t>(other_col - col) * args.stride_w;
#endif
    }
    Storage* to = tile_out + lane_channel * plane + static_cast<int64_t>(row) * args.stride_h * args.out_w +
                  static_cast<int64_t>(col) * args.stride_w;
#ifdef TCONV_WALKS_DEPTH
    to += args.out_offset(at.sample + image);
#else
    if constexpr (stacks(N)) to += static_cast<int64_t>(image) * num_channels * plane;
#endif
#pragma unroll
    for (int half = 0; half < 2; ++half, to += kStoreChannels * plane) {
      __syncwarp();
#pragma unroll
      for (int j = block * kFragments; j < (block + 1) * kFragments && j < N / 8; ++j)
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(write_at + j % kFragments * 32),
                     "f"(acc[4 * j + 2 * half]), "f"(acc[4 * j + 2 * half + 1])
                     : "memory");
      __syncwarp();
      if (whole) {
        store_rows(to, pair != 0, read_at, rounds, channels_at_once, plane);
      } else {
        float columns_of[kStoreChannels][2];
#pragma unroll
        for (int c = 0; c < rounds; ++c)
#pragma unroll
          for (int e = 0; e < 2; ++e)
            asm volatile("ld.shared.f32 %0, [%1];"
                         : "=f"(columns_of[c][e])
                         : "r"(read_at + (c * channels_at_once * kStorePitch + e * apart) * 4));
        Storage* at_row = to;
#pragma unroll
        for (int c = 0; c < rounds; ++c, at_row += channels_at_once * plane) {
          const bool real = half * kStoreChannels + lane_channel + c * channels_at_once < channels_left;
          if (real && pair != 0) at_row[0] = static_cast<Storage>(columns_of[c][0]);
          if (real && second) at_row[to_second] = static_cast<Storage>(columns_of[c][1]);
        }
      }
    }
  }
}

// Bias, element-wise chain, moments and stores of one warpgroup's 64 channels x one segment.
template <int N, bool kPooled, typename Storage>
__device__ __forceinline__ void finish_segment(const HopperArgs<Storage>& args, const Shared& shared,
                                               const TileCursor& at, int phase_index, int channel0, int segment,
                                               const ChannelPair& channels, float (&acc)[N / 2]) {
  const Plan& plan = args.plan;
  const Phase& phase = plan.phases[phase_index];
  int thread = threadIdx.x;
  asm volatile("" : "+r"(thread));
#ifdef TCONV_PAIRS_ROWS
  const bool second = plan.pairs.out > 0 && channel0 + thread / 32 % 4 * 16 >= plan.pairs.out;
  const int rows = second ? plan.pairs.out_rows / 2 : phase.out_count_h;  // the last pair may lack one
#endif
  const LineExtent<stacks(N)> extent{min(plan.line_samples, args.batch - at.sample),
#ifdef TCONV_PAIRS_ROWS
                                     rows,
#else
                                     phase.out_count_h,
#endif
                                     min(plan.tile_w, phase.out_count_w - at.strip * plan.tile_w),
                                     plan.image_rows,
                                     args.by_pitch,
                                     args.by_image_rows};
  SegmentValues<N, kPooled, Storage> values(args, extent, channels, at.group,
                                            at.tile * plan.tile_pixels + segment * plan.segment_pixels, thread % 32);
  if constexpr (kPooled) {
    const float weights[2] = {pool_weight(args, channels.channel(plan, at.group, 0)),
                              pool_weight(args, channels.channel(plan, at.group, 1))};
#pragma unroll
    for (int block = 0; block < values.kBlocks; ++block) values.finish(acc, block);
    store_pooled_segment<N>(args, shared, at, values.first_position, channel0, thread, weights, acc);
  } else {
    store_segment<N>(args, shared, at, phase, channel0, thread, values, acc);
  }
  if (args.partials != nullptr) values.store_moments(at, phase_index, segment);
}

}  // namespace hopper
}  // namespace cuda
}  // namespace tconv
