// Epilogue of the Hopper convolution: accumulators through bias and element-wise chain to moments and NCHW outputs.
#pragma once

#include <type_traits>

#include "conv_transpose_sm90_args.cuh"
#include "conv_transpose_sm90_pool.cuh"

namespace tconv {
namespace cuda {
namespace sm90 {

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
struct LineExtent {
  int rows, cols;
  FastDivisor by_pitch;

  // 3: both outputs at `position` and the next exist, 1: the first does, 0: none. `position` is even, so is the pitch.
  __device__ __forceinline__ int pair_at(int position, int* row, int* col) const {
    *row = static_cast<int>(by_pitch.quotient(position));
    *col = position - *row * static_cast<int>(by_pitch.divisor);
    if (*row >= rows || *col >= cols) return 0;
    return *col + 1 < cols ? 3 : 1;
  }
};

// Count, mean and squared deviations of one channel's valid outputs in a segment, which a quad of lanes holds.
// Bit 2j + e of `valid` tells whether value[4j + e] counts. Mean first, then deviations from it: no cancellation.
template <int N>
using ColumnMask = typename std::conditional<(N > 128), uint64_t, uint32_t>::type;  // two bits for eight columns

template <int N>
__device__ __forceinline__ Moments segment_moments(const float* values, ColumnMask<N> valid, int count) {
  Moments result{static_cast<float>(count), 0.0f, 0.0f};
#pragma unroll
  for (int round = 0; round < 2; ++round) {
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < N / 8; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float d = values[4 * j + e] - result.mean;
        if (valid >> (2 * j + e) & 1) sum += round == 0 ? d : d * d;
      }
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
    if (round == 0) {
      result.mean = count > 0 ? sum / result.count : 0.0f;
    } else {
      result.m2 = sum;
    }
  }
  return result;
}

// Stores a warp's 16 channels x N pixels.
template <int N, typename Storage>
__device__ __forceinline__ void store_segment(const Sm90Args<Storage>& args, const Shared& shared, const TileCursor& at,
                                              const LineExtent& extent, int first_position, int channel0, int thread,
                                              const float (&acc)[N / 2]) {
  const Plan& plan = args.plan;
  const Phase& phase = plan.phases[at.phase];
  const int lane = thread % 32, warp = thread / 32 % 4;
  const int num_channels = plan.num_groups * plan.out_channels_per_group;
  // Through the warp's buffer: fragments in, rows of one channel out, so that stores cover whole sectors. A reading lane
  // takes a pair of columns of one channel: half a warp a row.
  constexpr int kPairs = kStoreColumns / 2, kChannelsAtOnce = 32 / kPairs;
  constexpr int kBlocks = kStoreColumns / 8, kRounds = kStoreChannels / kChannelsAtOnce;
  const uint32_t buffer = shared.stores + thread / 32 * plan.store_bytes_per_warp;
  const uint32_t write_at = buffer + ((lane / 4) * kStorePitch + 2 * (lane % 4)) * 4;
  const int lane_channel = lane / kPairs, lane_column = 2 * (lane % kPairs);
  const uint32_t read_at = buffer + (lane_channel * kStorePitch + lane_column) * 4;
  const int64_t plane = static_cast<int64_t>(args.out_h) * args.out_w;
  const int first_channel = channel0 + warp * 16;
  Storage* tile_out = args.out + (at.sample * static_cast<int64_t>(num_channels) +
                                  at.group * plan.out_channels_per_group + first_channel + lane_channel) * plane +
                      static_cast<int64_t>(phase.out_first_h) * args.out_w +
                      static_cast<int64_t>(at.strip) * plan.tile_w * args.stride_w + phase.out_first_w;
  const int channels_left = plan.out_channels_per_group - first_channel - lane_channel;
  // Every pair is whole or absent, every channel exists: stores need no branches, and none waits for another.
  const bool whole = args.pair_stores && extent.cols % 2 == 0 && plan.out_channels_per_group - first_channel >= kStoreChannels;
#pragma unroll
  for (int j0 = 0; j0 < N / 8; j0 += kBlocks) {
    int row, col;
    int position = first_position + 8 * j0 + lane_column;
    asm volatile("" : "+r"(position));  // not earlier: places worked out ahead would not fit the registers
    int pair = extent.pair_at(position, &row, &col);
    if (8 * j0 + lane_column >= N) pair = 0;
    Storage* to = tile_out + static_cast<int64_t>(row) * args.stride_h * args.out_w + static_cast<int64_t>(col) * args.stride_w;
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int j = j0; j < j0 + kBlocks && j < N / 8; ++j)
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(write_at + half * (8 * kStorePitch * 4) + (j - j0) * 32),
                     "f"(acc[4 * j + 2 * half]), "f"(acc[4 * j + 2 * half + 1])
                     : "memory");
    __syncwarp();
    float2 values[kRounds];
#pragma unroll
    for (int c = 0; c < kRounds; ++c)
      asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                   : "=f"(values[c].x), "=f"(values[c].y)
                   : "r"(read_at + c * kChannelsAtOnce * kStorePitch * 4));
    if (whole) {
#pragma unroll
      for (int c = 0; c < kRounds; ++c)
        if (pair != 0) store_pair(to + c * (kChannelsAtOnce * plane), values[c]);
    } else {
#pragma unroll
      for (int c = 0; c < kRounds; ++c, to += kChannelsAtOnce * plane) {
        if (pair != 0 && c * kChannelsAtOnce < channels_left) {
          to[0] = static_cast<Storage>(values[c].x);
          if (pair == 3) to[args.stride_w] = static_cast<Storage>(values[c].y);
        }
      }
    }
  }
}

// Bias, element-wise chain, moments and stores of one warpgroup's 64 channels x one segment.
template <int N, bool kPooled, typename Storage>
__device__ __forceinline__ void finish_segment(const Sm90Args<Storage>& args, const Shared& shared, const TileCursor& at,
                                               int channel0, int segment, float (&acc)[N / 2]) {
  const Plan& plan = args.plan;
  const int first_position = at.tile * plan.tile_pixels + segment * plan.segment_pixels;
  const Phase& phase = plan.phases[at.phase];
  int thread = threadIdx.x;
  asm volatile("" : "+r"(thread));  // what follows from it is worked out here, and takes no registers while multiplying
  const int lane = thread % 32, warp = thread / 32 % 4;
  const LineExtent extent{phase.out_count_h, min(plan.tile_w, phase.out_count_w - at.strip * plan.tile_w), args.by_pitch};
  const int padded = plan.num_sweeps * plan.blocks_per_sweep * kBlockOC;
  const int num_channels = plan.num_groups * plan.out_channels_per_group;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int in_group = channel0 + warp * 16 + lane / 4 + half * 8;
    const bool real = in_group < plan.out_channels_per_group;
    const int channel = at.group * plan.out_channels_per_group + (real ? in_group : 0);
    const float inv_scale = args.inv_scale[at.group * padded + in_group];
    const float bias = channel_bias<float>(args.epilogue, channel);
#pragma unroll
    for (int j = 0; j < N / 8; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& value = acc[4 * j + 2 * half + e];
        value = Epilogue::apply<float, Storage>(value * inv_scale + bias, args.epilogue, channel);
      }
  }
  if (args.partials != nullptr) {
    ColumnMask<N> valid = 0;
    int row, col;
    extent.pair_at(first_position + 2 * (lane % 4), &row, &col);
#pragma unroll
    for (int j = 0; j < N / 8; ++j) {
      int pair = row >= extent.rows || col >= extent.cols ? 0 : col + 1 < extent.cols ? 3 : 1;
      if (kPooled && 8 * j >= plan.segment_pixels) pair = 0;  // the next segment's
      valid |= static_cast<ColumnMask<N>>(pair) << (2 * j);
      col += 8;  // at most the pitch
      if (col >= plan.pitch) {
        col -= plan.pitch;
        ++row;
      }
    }
    int count = N > 128 ? __popcll(valid) : __popc(static_cast<uint32_t>(valid));
    count += __shfl_xor_sync(0xFFFFFFFFu, count, 1);
    count += __shfl_xor_sync(0xFFFFFFFFu, count, 2);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Moments moments = segment_moments<N>(acc + 2 * half, valid, count);
      const int in_group = channel0 + warp * 16 + lane / 4 + half * 8;
      if (lane % 4 == 0 && in_group < plan.out_channels_per_group) {
        // The plan keeps this below 2^31.
        const int tile = (at.strip * plan.num_phases + at.phase) * plan.num_tiles + at.tile;
        const int entry = (at.sample * static_cast<int>(plan.partials_per_sample()) + tile * plan.num_segments + segment) *
                              num_channels + at.group * plan.out_channels_per_group + in_group;
        args.partials[entry] = moments;
      }
    }
  }

  if constexpr (kPooled) {
    store_pooled_segment<N>(args, shared, at, first_position, channel0, thread, acc);
  } else {
    store_segment<N>(args, shared, at, extent, first_position, channel0, thread, acc);
  }
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tconv
