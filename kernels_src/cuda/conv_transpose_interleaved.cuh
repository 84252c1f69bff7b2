// Transposed convolution with few products an output, where the time is the outputs': strides over two columns, groups
// of few channels in three dimensions. Plain fp32 products of operands that are rounded to TF32 where the call's are.
//
// A block owns up to kRows rows of one row phase of an image, and kChannels output channels of a group; their weights
// for that phase lie in shared memory. A warp takes a row: its lanes positions 32 apart, kPositions of them each. One
// column phase after the other is summed, over all input channels of a tap, and put in its place among the row's
// outputs in shared memory, from where they are stored as whole lines. Rows that no tap reaches are stored at once.
#pragma once

#include "../epilogue.h"
#include "../layer.h"
#include "fill_run.cuh"
#include "mma_sync.cuh"
#include "storage.cuh"

namespace tconv {
namespace cuda {

struct InterleavedConfig {
  static constexpr int kWarps = 4;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kRows = 2 * kWarps;
  static constexpr int kPositions = 2;  // of a lane
  static constexpr int kChannels = 8;
  static constexpr int kMaxStride = 8;
  static constexpr int kMinBlocks = 5;  // of a multiprocessor
  static constexpr int kBatch = 8;      // input channels that are loaded together
  static constexpr int kWarpPositions = 32 * kPositions;
};

template <typename Storage>
struct InterleavedArgs {
  const Storage* x;
  const Storage* weight;
  Storage* out;
  EpilogueArgs<Storage> epilogue;
  int64_t x_stride_n, x_stride_d, x_stride_c, x_stride_h;
  int64_t out_stride_n, out_stride_d, out_stride_c;
  int x_stride_w;
  int in_h, in_w, out_h, out_w, kernel_h, kernel_w, stride_h, stride_w;
  // Of a volume, whose slices are images (depth_walk.h); an image by itself is one of depth one.
  int slices, in_depth, depth_taps, depth_first, depth_step, kernel_depth, kernel_first, kernel_step;
  int in_channels, out_channels, groups;  // channels of a group
  int channel_blocks, row_blocks;         // of a group; of a row phase
  int staged;                             // weights, a multiple of 4
  AxisPhase rows[InterleavedConfig::kMaxStride], columns[InterleavedConfig::kMaxStride];
};

template <bool kRounds, typename Storage>
__device__ __forceinline__ float interleaved_operand(Storage value) {
  if constexpr (kRounds) {  // as round_to_tf32, in one instruction
    uint32_t bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
    return __uint_as_float(bits);
  } else {
    return static_cast<float>(value);
  }
}

// Adds a tap's products of all input channels of a group. `x`: the tap's row in the first of them; `weights`:
// [in channel][kChannels]. Absent inputs are not multiplied: weights may be infinite.
template <bool kRounds, typename Storage, int kPositions, int kChannels>
__device__ __forceinline__ void accumulate_tap(float (&acc)[kPositions][kChannels],
                                               const InterleavedArgs<Storage>& args, const Storage* x,
                                               const float* weights, int column) {
  constexpr int kBatch = InterleavedConfig::kBatch;
  bool exists[kPositions];
  int offset[kPositions];
#pragma unroll
  for (int i = 0; i < kPositions; ++i) {
    const int at = column + 32 * i;
    exists[i] = at >= 0 && at < args.in_w;
    offset[i] = exists[i] ? at * args.x_stride_w : 0;
  }
  const auto add = [&](const Storage(&values)[kPositions]) {
    float value[kPositions];
#pragma unroll
    for (int i = 0; i < kPositions; ++i) value[i] = interleaved_operand<kRounds>(values[i]);
#pragma unroll
    for (int c = 0; c < kChannels; c += 4) {
      const float4 weight = *reinterpret_cast<const float4*>(weights + c);
      const float four[4] = {weight.x, weight.y, weight.z, weight.w};
#pragma unroll
      for (int i = 0; i < kPositions; ++i)
#pragma unroll
        for (int k = 0; k < 4; ++k)
          if (exists[i]) acc[i][c + k] = fmaf(value[i], four[k], acc[i][c + k]);
    }
    weights += kChannels;
  };
  int in = 0;
  for (; in + kBatch <= args.in_channels; in += kBatch) {  // loads under way together
    Storage values[kBatch][kPositions];
#pragma unroll
    for (int b = 0; b < kBatch; ++b, x += args.x_stride_c)
#pragma unroll
      for (int i = 0; i < kPositions; ++i) values[b][i] = x[offset[i]];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) add(values[b]);
  }
#pragma unroll 1
  for (; in < args.in_channels; ++in, x += args.x_stride_c) {
    Storage values[kPositions];
#pragma unroll
    for (int i = 0; i < kPositions; ++i) values[i] = x[offset[i]];
    add(values);
  }
}

// Stores `count` neighbouring outputs of a channel, of which `held` are the sums. A lane's loads are under way
// together.
template <typename Storage>
__device__ __forceinline__ void store_strip(Storage* out, const float* held, int count, int lane,
                                            const EpilogueArgs<Storage>& epilogue, int channel) {
  constexpr int kTogether = 4;
#pragma unroll 1
  for (int i = lane; i < count; i += 32 * kTogether) {
    Storage values[kTogether];
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      const float sum = held[min(i + 32 * k, count - 1)];
      values[k] = to_storage<Storage>(apply_epilogue<float, Storage>(sum, epilogue, channel));
    }
#pragma unroll
    for (int k = 0; k < kTogether; ++k)
      if (i + 32 * k < count) out[i + 32 * k] = values[k];
  }
}

template <typename Storage, bool kRounds>
__global__ void __launch_bounds__(InterleavedConfig::kThreads, InterleavedConfig::kMinBlocks)
    conv_transpose_interleaved_kernel(const __grid_constant__ InterleavedArgs<Storage> args) {
  using Config = InterleavedConfig;
  constexpr int kChannels = Config::kChannels;
  float* const weights = reinterpret_cast<float*>(dynamic_smem());  // [depth tap][tap row][kernel_w][in][kChannels]
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  int rest = blockIdx.x;
  const auto next_digit = [&rest](int radix) {
    const int quotient = rest / radix, digit = rest - quotient * radix;
    rest = quotient;
    return digit;
  };
  const int row_block = next_digit(args.row_blocks), row_phase = next_digit(args.stride_h);
  const int channel0 = next_digit(args.channel_blocks) * kChannels, group = next_digit(args.groups);
  const int slice = next_digit(args.slices), volume = rest;
  const AxisPhase& tap_rows = args.rows[row_phase];
  const int row_taps = tap_rows.tap_count;

  const int tap_weights = args.in_channels * kChannels, row_weights = args.kernel_w * tap_weights;
  for (int i = threadIdx.x; i < args.depth_taps * row_taps * row_weights; i += Config::kThreads) {
    const int channel = i % kChannels, in = i / kChannels % args.in_channels, tap = i / tap_weights;
    const int tap_w = tap % args.kernel_w, row = tap / args.kernel_w, tap_d = row / row_taps;
    const int kd = args.kernel_first - tap_d * args.kernel_step;
    const int kh = tap_rows.tap_first + (row - tap_d * row_taps) * tap_rows.tap_step;
    float value = 0.0f;
    if (channel0 + channel < args.out_channels) {
      const int64_t run = (int64_t{group} * args.in_channels + in) * args.out_channels + channel0 + channel;
      value = interleaved_operand<kRounds>(
          args.weight[((run * args.kernel_depth + kd) * args.kernel_h + kh) * args.kernel_w + tap_w]);
    }
    weights[i] = value;
  }
  __syncthreads();

  const int first_channel = group * args.out_channels + channel0;  // of all
  const int channels = min(kChannels, args.out_channels - channel0);
  const Storage* const x = args.x + volume * args.x_stride_n + int64_t{group} * args.in_channels * args.x_stride_c;
  Storage* const out =
      args.out + volume * args.out_stride_n + slice * args.out_stride_d + first_channel * args.out_stride_c;
  const int strip = Config::kWarpPositions * args.stride_w;  // outputs of a row that a warp holds at a time
  float* const held = weights + args.staged + warp * kChannels * strip;
  const int end_row = min((row_block + 1) * Config::kRows, static_cast<int>(tap_rows.out_count));

  for (int row = row_block * Config::kRows + warp; row < end_row; row += Config::kWarps) {
    Storage* const out_row = out + (tap_rows.out_first + int64_t{row} * tap_rows.out_step) * args.out_w;
    if (row_taps == 0) {
      for (int c = 0; c < channels; ++c) {
        const Storage value =
            to_storage<Storage>(apply_epilogue<float, Storage>(0.0f, args.epilogue, first_channel + c));
        fill_run(out_row + c * args.out_stride_c, args.out_w, value, lane, 32);
      }
      continue;
    }
    for (int begin = 0; begin * args.stride_w < args.out_w; begin += Config::kWarpPositions) {
      for (int phase = 0; phase < args.stride_w; ++phase) {
        const AxisPhase& taps = args.columns[phase];
        float acc[Config::kPositions][kChannels] = {};
        for (int d = 0; d < args.depth_taps; ++d) {
          const int read = slice + args.depth_first + d * args.depth_step;
          if (read < 0 || read >= args.in_depth) continue;
          for (int j = 0; j < row_taps; ++j) {
            const int in_row = row + tap_rows.offset_first - j * tap_rows.offset_step;
            if (in_row < 0 || in_row >= args.in_h) continue;
            const Storage* const source = x + read * args.x_stride_d + in_row * args.x_stride_h;
            const float* const tap_row = weights + (d * row_taps + j) * row_weights;
            for (int k = 0; k < taps.tap_count; ++k) {
              accumulate_tap<kRounds>(acc, args, source, tap_row + (taps.tap_first + k * taps.tap_step) * tap_weights,
                                      begin + lane + taps.offset_first - k * taps.offset_step);
            }
          }
        }
#pragma unroll
        for (int i = 0; i < Config::kPositions; ++i)
#pragma unroll
          for (int c = 0; c < kChannels; ++c) held[c * strip + (lane + 32 * i) * args.stride_w + phase] = acc[i][c];
      }
      __syncwarp();
      const int first = begin * args.stride_w, count = min(strip, args.out_w - first);
      for (int c = 0; c < channels; ++c)
        store_strip(out_row + c * args.out_stride_c + first, held + c * strip, count, lane, args.epilogue,
                    first_channel + c);
      __syncwarp();
    }
  }
}

}  // namespace cuda
}  // namespace tconv
