// Transposed convolution for groups of few channels, which would leave a tensor-core tile mostly padding: depthwise
// layers, the last layer of a generator. Plain fp32 products (also with TF32 allowed), so that fp32, fp16 and bf16
// tensors need no other kernel behind.
//
// A block owns kRows rows of one stride phase of a sample, and kChannels output channels of a group; their weights for
// that phase lie in shared memory. A warp takes a row: its lanes neighbouring positions, kPositions of them each, and
// all kPhases column phases of a position, so that what it stores is contiguous.
#pragma once

#include <cstring>
#include <type_traits>

#include "../epilogue.h"
#include "../moments.h"
#include "../layer.h"
#include "mma_sync.cuh"
#include "storage.cuh"

namespace tconv {
namespace cuda {

struct DirectConfig {
  static constexpr int kWarps = 4;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kRows = 2 * kWarps;
  static constexpr int kPositions = 2;  // of a lane, 32 columns apart
  static constexpr int kMaxStride = 8;
  // Of a multiprocessor; asked for none, the compiler spills to make room for more.
  static constexpr int kMinBlocks = 5;
};

template <typename Storage>
struct DirectArgs {
  const Storage* x;
  const Storage* weight;
  Storage* out;
  Moments* partials;  // or null
  EpilogueArgs<Storage> epilogue;
  int64_t x_stride_n, x_stride_c;
  int x_stride_h, x_stride_w;
  int in_h, in_w, out_h, out_w, kernel_h, kernel_w, stride_h, stride_w;
  int in_channels, out_channels, groups;         // channels of a group
  int channel_blocks, row_blocks, column_parts;  // of a group; of a row phase; of the column phases
  int first_offset, last_offset;                 // of a column from its position, the least and the most over all taps
  AxisPhase rows[DirectConfig::kMaxStride], columns[DirectConfig::kMaxStride];
};

// One lane's values of a channel as deviations from the first of them.
// Source: Chan, Golub, LeVeque, "Algorithms for computing the sample variance", 1983 (shifted data).
struct LaneMoments {
  float count = 0.0f, shift = 0.0f, sum = 0.0f, squares = 0.0f;

  __device__ __forceinline__ void add(float value) {
    if (count == 0.0f) shift = value;
    const float d = value - shift;
    count += 1.0f;
    sum += d;
    squares = fmaf(d, d, squares);
  }

  // Of the whole warp, in every lane.
  __device__ __forceinline__ Moments of_warp() const {
    const float own = count > 0.0f ? sum / count : 0.0f, within = squares - sum * own;
    Moments m{count, shift + own, within < 0.0f ? 0.0f : within};  // NaN stays
#pragma unroll 1
    for (int distance = 1; distance < 32; distance *= 2) {
      const float other_count = __shfl_xor_sync(0xFFFFFFFFu, m.count, distance);
      const float other_mean = __shfl_xor_sync(0xFFFFFFFFu, m.mean, distance);
      const float other_m2 = __shfl_xor_sync(0xFFFFFFFFu, m.m2, distance);
      const float total = m.count + other_count, share = total > 0.0f ? other_count / total : 0.0f;
      if (m.count == 0.0f) {
        m.mean = other_mean, m.m2 = other_m2;
      } else if (other_count > 0.0f) {
        const float delta = other_mean - m.mean;
        m.mean += delta * share;
        m.m2 += other_m2 + delta * delta * m.count * share;
      }
      m.count = total;
    }
    return m;
  }
};

template <typename Storage>
__device__ __forceinline__ void store_neighbours(Storage* at, const float (&values)[1]) {
  *at = to_storage<Storage>(values[0]);
}
template <typename Storage>
__device__ __forceinline__ void store_neighbours(Storage* at, const float (&values)[2]) {
  const Storage pair[2] = {to_storage<Storage>(values[0]), to_storage<Storage>(values[1])};
  if (reinterpret_cast<uintptr_t>(at) % sizeof(pair) == 0) {  // the same for a whole row
    using Whole = typename std::conditional<sizeof(Storage) == 4, uint2, unsigned>::type;
    Whole whole;
    memcpy(&whole, pair, sizeof(pair));
    *reinterpret_cast<Whole*>(at) = whole;
  } else {
    at[0] = pair[0];
    at[1] = pair[1];
  }
}

// Adds all products of a row's positions `position` and every 32nd behind it. kInside: every column that any tap wants
// is one of the input's. `x`: the group's first channel; `weights` as staged.
template <bool kInside, typename Storage, int kPositions, int kPhases, int kChannels>
__device__ __forceinline__ void accumulate_row(float (&acc)[kPositions][kPhases][kChannels],
                                               const DirectArgs<Storage>& args, const AxisPhase& tap_rows,
                                               const AxisPhase* columns, const Storage* x, const float* weights,
                                               int row, int position) {
  for (int in = 0; in < args.in_channels; ++in, x += args.x_stride_c) {
    for (int j = 0; j < tap_rows.tap_count; ++j, weights += args.kernel_w * kChannels) {
      const int in_row = row + tap_rows.offset_first - j * tap_rows.offset_step;
      if (in_row < 0 || in_row >= args.in_h) continue;  // the same for the warp
      const Storage* const source = x + in_row * args.x_stride_h;
#pragma unroll
      for (int phase = 0; phase < kPhases; ++phase) {
        const AxisPhase& taps = columns[phase];
        int column = position + taps.offset_first;
        const float* tap_weights = weights + taps.tap_first * kChannels;
        for (int k = 0; k < taps.tap_count; ++k, column -= taps.offset_step, tap_weights += taps.tap_step * kChannels) {
          alignas(4 * kChannels) float weight[kChannels];
          if constexpr (kChannels == 4) {
            *reinterpret_cast<float4*>(weight) = *reinterpret_cast<const float4*>(tap_weights);
          } else {
#pragma unroll
            for (int c = 0; c < kChannels; ++c) weight[c] = tap_weights[c];
          }
#pragma unroll
          for (int i = 0; i < kPositions; ++i) {
            const int at = column + 32 * i;
            if (!kInside && (at < 0 || at >= args.in_w)) continue;
            const float value = static_cast<float>(source[at * args.x_stride_w]);
#pragma unroll
            for (int c = 0; c < kChannels; ++c) acc[i][phase][c] = fmaf(value, weight[c], acc[i][phase][c]);
          }
        }
      }
    }
  }
}

// kPhases: neighbouring column phases that a lane computes: all of them, or one.
template <typename Storage, int kChannels, int kPhases>
__global__ void __launch_bounds__(DirectConfig::kThreads, DirectConfig::kMinBlocks)
    conv_transpose_direct_kernel(const __grid_constant__ DirectArgs<Storage> args) {
  using Config = DirectConfig;
  constexpr int kPositions = Config::kPositions;
  __shared__ Moments warp_moments[Config::kWarps][kChannels];
  float* const weights = reinterpret_cast<float*>(dynamic_smem());  // [in channel][tap row][kernel_w][kChannels]
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  int rest = blockIdx.x;
  const auto next_digit = [&rest](int radix) {
    const int quotient = rest / radix, digit = rest - quotient * radix;
    rest = quotient;
    return digit;
  };
  const int row_block = next_digit(args.row_blocks), row_phase = next_digit(args.stride_h),
            part = next_digit(args.column_parts);
  const int channel0 = next_digit(args.channel_blocks) * kChannels, group = next_digit(args.groups), sample = rest;
  const AxisPhase& tap_rows = args.rows[row_phase];
  const int row_taps = tap_rows.tap_count;

  const int staged = args.in_channels * row_taps * args.kernel_w * kChannels;
  for (int i = threadIdx.x; i < staged; i += Config::kThreads) {
    const int channel = i % kChannels, tap_w = i / kChannels % args.kernel_w, row = i / kChannels / args.kernel_w;
    const int in = row / row_taps, tap_h = tap_rows.tap_first + (row - in * row_taps) * tap_rows.tap_step;
    float value = 0.0f;
    if (channel0 + channel < args.out_channels) {
      const int64_t plane = (int64_t{group} * args.in_channels + in) * args.out_channels + channel0 + channel;
      value = static_cast<float>(args.weight[(plane * args.kernel_h + tap_h) * args.kernel_w + tap_w]);
    }
    weights[i] = value;
  }
  __syncthreads();

  const int first_channel = group * args.out_channels + channel0;  // of all
  const int64_t out_plane = int64_t{args.out_h} * args.out_w;
  const Storage* const x = args.x + sample * args.x_stride_n + int64_t{group} * args.in_channels * args.x_stride_c;
  Storage* const out = args.out + (int64_t{sample} * args.groups * args.out_channels + first_channel) * out_plane;
  const AxisPhase* const columns = args.columns + part * kPhases;
  const int positions = static_cast<int>(columns[0].out_count);  // at least as many as of the phases after it
  const int end_row = min((row_block + 1) * Config::kRows, static_cast<int>(tap_rows.out_count));
  LaneMoments moments[kChannels];

  for (int row = row_block * Config::kRows + warp; row < end_row; row += Config::kWarps) {
    Storage* const out_row = out + int64_t{tap_rows.out_first + row * tap_rows.out_step} * args.out_w;
    for (int begin = 0; begin < positions; begin += 32 * kPositions) {
      float acc[kPositions][kPhases][kChannels] = {};
      if (begin + args.first_offset >= 0 && begin + 32 * kPositions - 1 + args.last_offset < args.in_w) {
        accumulate_row<true>(acc, args, tap_rows, columns, x, weights, row, begin + lane);
      } else {
        accumulate_row<false>(acc, args, tap_rows, columns, x, weights, row, begin + lane);
      }

#pragma unroll
      for (int c = 0; c < kChannels; ++c) {
        if (channel0 + c >= args.out_channels) continue;
#pragma unroll
        for (int i = 0; i < kPositions; ++i) {
          const int position = begin + lane + 32 * i;
          float values[kPhases];
#pragma unroll
          for (int phase = 0; phase < kPhases; ++phase)
            values[phase] = apply_epilogue<float, Storage>(acc[i][phase][c], args.epilogue, first_channel + c);
          Storage* const at = out_row + c * out_plane + int64_t{position} * args.stride_w + columns[0].out_first;
          if (position < static_cast<int>(columns[kPhases - 1].out_count)) {
            store_neighbours<Storage>(at, values);
          } else if (position < positions) {
            *at = to_storage<Storage>(values[0]);
          }
          if (args.partials == nullptr) continue;
#pragma unroll
          for (int phase = 0; phase < kPhases; ++phase)
            if (position < static_cast<int>(columns[phase].out_count)) moments[c].add(values[phase]);
        }
      }
    }
  }

  if (args.partials == nullptr) return;
#pragma unroll
  for (int c = 0; c < kChannels; ++c) {
    const Moments m = moments[c].of_warp();
    if (lane == 0) warp_moments[warp][c] = m;
  }
  __syncthreads();
  const int c = threadIdx.x;
  if (c >= kChannels || channel0 + c >= args.out_channels) return;
  MomentsF64 sum;
  for (const auto& of_warp : warp_moments) sum.combine(of_warp[c].count, of_warp[c].mean, of_warp[c].m2);
  const int num_partials = args.row_blocks * args.stride_h * args.column_parts;
  const int64_t partial = (part * args.stride_h + row_phase) * args.row_blocks + row_block;
  args.partials[(int64_t{sample} * num_partials + partial) * (args.groups * args.out_channels) + first_channel + c] =
      Moments{static_cast<float>(sum.count), static_cast<float>(sum.mean), static_cast<float>(sum.m2)};
}

}  // namespace cuda
}  // namespace tconv
