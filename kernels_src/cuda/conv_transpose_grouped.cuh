// The interleaved kernel for slices of volumes in 16 bits and groups of at most eight input channels, whose products
// the tensor cores form: a tap's eight channels are the depth of one mma.m16n8k8, positions of an output row its rows.
//
// Blocks and warps own what they do in conv_transpose_interleaved.cuh. For each strip of a row a warp first puts what
// its taps read into shared memory, eight channels of a position side by side, so that every tap and column phase reads
// its operand from there, shifted; then sums go through the epilogue to their places in a strip of outputs, which lies
// as far past a multiple of 16 bytes as it does in the result, and is stored 16 bytes at a time.
#pragma once

#include <cstring>
#include <type_traits>

#include "conv_transpose_interleaved.cuh"

namespace tconv {
namespace cuda {

struct GroupedConfig {
  static constexpr int kChannels = InterleavedConfig::kChannels;  // in and out
  static constexpr int kVector = 16 / 2;                          // 16-bit numbers
  static constexpr int kFragments = InterleavedConfig::kWarpPositions / 16;
  static constexpr int kPositionBytes = 2 * kChannels;
  static constexpr int kTapBytes = 2 * kChannels * kChannels;
  static constexpr int kTogether = 2;  // positions whose loads a lane has under way

  // Numbers from channel to channel of a strip.
  TCONV_HD static int held_stride(int stride_w) { return InterleavedConfig::kWarpPositions * stride_w + kVector; }
};

template <typename Storage>
struct GroupedArgs : InterleavedArgs<Storage> {
  int first_offset;               // of columns, among all phases
  int staged_rows, staged_width;  // what a warp holds of x: at most, and each
  int weight_bytes, warp_bytes;   // of shared memory
};

// Sums of a strip as mma.m16n8 has them: of fragment m, number e is of position 16 m + lane / 4 + 8 (e / 2) and
// channel 2 (lane % 4) + e % 2.
using GroupedSums = float[GroupedConfig::kFragments][4];

template <typename Storage>
__device__ __forceinline__ void mma_m16n8k8(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  if constexpr (std::is_same<Storage, __half>::value)
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(b));
  else
    asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(b));
}

template <typename Storage>
__device__ __forceinline__ uint32_t packed_pair(Storage low, Storage high) {
  const Storage pair[2] = {low, high};
  uint32_t bits;
  memcpy(&bits, pair, sizeof(bits));
  return bits;
}

// Number `index`, 0 or 1, of a pair.
template <typename Storage>
__device__ __forceinline__ float of_pair(uint32_t bits, int index) {
  Storage pair[2];
  memcpy(pair, &bits, sizeof(bits));
  return static_cast<float>(pair[index]);
}

// Puts what the taps of a strip read into shared memory, row after row of x from column `first` on. Zeros are absent
// inputs, and channels that there are not.
template <typename Storage>
__device__ __forceinline__ void stage_strip(unsigned char* staged, const GroupedArgs<Storage>& args, const Storage* x,
                                            const AxisPhase& tap_rows, int slice, int row, int first, int lane) {
  using Config = GroupedConfig;
  const int row_taps = tap_rows.tap_count, width = args.staged_width, count = args.depth_taps * row_taps * width;
#pragma unroll 1
  for (int i = lane; i < count; i += 32 * Config::kTogether) {
    Storage values[Config::kTogether][Config::kChannels];
#pragma unroll
    for (int k = 0; k < Config::kTogether; ++k) {
      const int at = i + 32 * k, tap = at / width, column = first + at - tap * width;
      const int d = tap / row_taps, j = tap - d * row_taps;
      const int read = slice + args.depth_first + d * args.depth_step;
      const int in_row = row + tap_rows.offset_first - j * tap_rows.offset_step;
      const bool exists = at < count && read >= 0 && read < args.in_depth && in_row >= 0 && in_row < args.in_h &&
                          column >= 0 && column < args.in_w;
      const Storage* const from =
          x + (exists ? read * args.x_stride_d + in_row * args.x_stride_h + int64_t{column} * args.x_stride_w : 0);
#pragma unroll
      for (int c = 0; c < Config::kChannels; ++c)
        values[k][c] = exists && c < args.in_channels ? from[c * args.x_stride_c] : to_storage<Storage>(0.0f);
    }
#pragma unroll
    for (int k = 0; k < Config::kTogether; ++k) {
      const auto& of = values[k];
      const uint4 all = make_uint4(packed_pair(of[0], of[1]), packed_pair(of[2], of[3]), packed_pair(of[4], of[5]),
                                   packed_pair(of[6], of[7]));
      const int at = i + 32 * k;
      if (at < count) *reinterpret_cast<uint4*>(staged + at * Config::kPositionBytes) = all;
    }
  }
}

// Adds a tap's products. `staged`: the position that the strip's first reads; `weights`: the tap's, a lane's pairs.
template <typename Storage>
__device__ __forceinline__ void multiply_tap(GroupedSums& acc, const unsigned char* staged, const uint32_t* weights,
                                             int lane) {
  using Config = GroupedConfig;
  const uint32_t b = weights[lane], row = smem_address(staged) + lane * Config::kPositionBytes;
#pragma unroll
  for (int m = 0; m < Config::kFragments; m += 2) {
    uint32_t a[4];
    ldmatrix_x4(a, row + 16 * m * Config::kPositionBytes);
    mma_m16n8k8<Storage>(acc[m], a[0], a[1], b);
    mma_m16n8k8<Storage>(acc[m + 1], a[2], a[3], b);
  }
}

// One sum of a column phase without the products of absent inputs, which an infinite weight would make NaN. `begin`: of
// the strip's positions. Absent rows and slices are zeros among what is staged.
template <typename Storage>
__device__ __noinline__ float sum_of_present(const unsigned char* staged, const uint32_t* weights,
                                             const GroupedArgs<Storage>& args, const AxisPhase& tap_rows,
                                             const AxisPhase& taps, int slice, int row, int begin, int position,
                                             int channel) {
  float sum = 0.0f;
  for (int tap_row = 0; tap_row < args.depth_taps * tap_rows.tap_count; ++tap_row) {
    const int d = tap_row / tap_rows.tap_count, j = tap_row - d * tap_rows.tap_count;
    const int read = slice + args.depth_first + d * args.depth_step;
    const int in_row = row + tap_rows.offset_first - j * tap_rows.offset_step;
    if (read < 0 || read >= args.in_depth || in_row < 0 || in_row >= args.in_h) continue;
    for (int k = 0; k < taps.tap_count; ++k) {
      const int from = position + taps.offset_first - k * taps.offset_step;
      if (begin + from < 0 || begin + from >= args.in_w) continue;
      const int at = tap_row * args.staged_width + from - args.first_offset;
      const Storage* const x = reinterpret_cast<const Storage*>(staged + at * GroupedConfig::kPositionBytes);
      const uint32_t* const tap =
          weights + (tap_row * args.kernel_w + taps.tap_first + k * taps.tap_step) * 32 + 4 * channel;
      for (int c = 0; c < args.in_channels; ++c)
        sum = fmaf(static_cast<float>(x[c]), of_pair<Storage>(tap[c / 2], c % 2), sum);
    }
  }
  return sum;
}

// Stores outputs first .. first + count of a row, all channels. `held`: their strip; `out_row`: the first channel's.
template <typename Storage>
__device__ __forceinline__ void store_strips(Storage* out_row, int64_t out_stride_c, const Storage* held,
                                             int held_stride, int channels, int first, int count, int lane) {
  constexpr int kVector = GroupedConfig::kVector;
  const int vectors = held_stride / kVector;
  for (int i = lane; i < channels * vectors; i += 32) {
    const int channel = i / vectors;
    Storage* const out = out_row + channel * out_stride_c + first;
    const int past = static_cast<int>(reinterpret_cast<uintptr_t>(out) / sizeof(Storage) % kVector);
    const int at = (i - channel * vectors) * kVector;
    const Storage* const from = held + channel * held_stride + at;
    const int begin = max(past - at, 0), end = min(count + past - at, kVector);
    if (begin == 0 && end == kVector) {
      *reinterpret_cast<uint4*>(out + at - past) = *reinterpret_cast<const uint4*>(from);
    } else {
      for (int k = begin; k < end; ++k) out[at - past + k] = from[k];
    }
  }
}

template <typename Storage>
__global__ void __launch_bounds__(InterleavedConfig::kThreads, InterleavedConfig::kMinBlocks)
    conv_transpose_grouped_kernel(const __grid_constant__ GroupedArgs<Storage> args) {
  using Config = InterleavedConfig;
  constexpr int kChannels = GroupedConfig::kChannels;
  // [depth tap][tap row][kernel_w][lane]: of input channels 2 (lane % 4) and the next, of output channel lane / 4
  uint32_t* const weights = reinterpret_cast<uint32_t*>(dynamic_smem());
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
  const int row_taps = tap_rows.tap_count, tap_pairs = args.depth_taps * row_taps * args.kernel_w * 32;

  bool finite = true;
  for (int i = threadIdx.x; i < tap_pairs; i += Config::kThreads) {
    const int tap = i / 32, channel = i % 32 / 4, tap_w = tap % args.kernel_w, row = tap / args.kernel_w;
    const int tap_d = row / row_taps;
    const int kd = args.kernel_first - tap_d * args.kernel_step;
    const int kh = tap_rows.tap_first + (row - tap_d * row_taps) * tap_rows.tap_step;
    Storage pair[2];
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int in = 2 * (i % 4) + k;
      pair[k] = to_storage<Storage>(0.0f);
      if (in >= args.in_channels || channel0 + channel >= args.out_channels) continue;
      const int64_t run = (int64_t{group} * args.in_channels + in) * args.out_channels + channel0 + channel;
      pair[k] = args.weight[((run * args.kernel_depth + kd) * args.kernel_h + kh) * args.kernel_w + tap_w];
    }
    weights[i] = packed_pair(pair[0], pair[1]);
  }
  __syncthreads();
  for (int i = lane; i < tap_pairs; i += 32)
    for (int k = 0; k < 2; ++k) finite = finite && isfinite(of_pair<Storage>(weights[i], k));
  finite = __all_sync(0xFFFFFFFFu, finite);

  const int first_channel = group * args.out_channels + channel0;  // of all
  const int channels = min(kChannels, args.out_channels - channel0);
  const Storage* const x = args.x + volume * args.x_stride_n + int64_t{group} * args.in_channels * args.x_stride_c;
  Storage* const out =
      args.out + volume * args.out_stride_n + slice * args.out_stride_d + first_channel * args.out_stride_c;
  const int held_stride = GroupedConfig::held_stride(args.stride_w);
  unsigned char* const staged = dynamic_smem() + args.weight_bytes + warp * args.warp_bytes;
  Storage* const held =
      reinterpret_cast<Storage*>(staged + args.staged_rows * args.staged_width * GroupedConfig::kPositionBytes);
  const int end_row = min((row_block + 1) * Config::kRows, static_cast<int>(tap_rows.out_count));

  for (int row = row_block * Config::kRows + warp; row < end_row; row += Config::kWarps) {
    Storage* const out_row = out + (tap_rows.out_first + int64_t{row} * tap_rows.out_step) * args.out_w;
    if (tap_pairs == 0) {
      for (int c = 0; c < channels; ++c) {
        const Storage value =
            to_storage<Storage>(apply_epilogue<float, Storage>(0.0f, args.epilogue, first_channel + c));
        fill_run(out_row + c * args.out_stride_c, args.out_w, value, lane, 32);
      }
      continue;
    }
    for (int begin = 0; begin * args.stride_w < args.out_w; begin += Config::kWarpPositions) {
      stage_strip(staged, args, x, tap_rows, slice, row, begin + args.first_offset, lane);
      __syncwarp();
      const int first = begin * args.stride_w, count = min(held_stride - GroupedConfig::kVector, args.out_w - first);
      for (int phase = 0; phase < args.stride_w; ++phase) {
        const AxisPhase& taps = args.columns[phase];
        GroupedSums acc = {};
        for (int d = 0; d < args.depth_taps; ++d) {
          const int read = slice + args.depth_first + d * args.depth_step;
          if (read < 0 || read >= args.in_depth) continue;
          for (int j = 0; j < row_taps; ++j) {
            const int in_row = row + tap_rows.offset_first - j * tap_rows.offset_step;
            if (in_row < 0 || in_row >= args.in_h) continue;
            const int tap_row = d * row_taps + j;
            for (int k = 0; k < taps.tap_count; ++k) {
              const int offset = taps.offset_first - k * taps.offset_step;
              const unsigned char* const source =
                  staged + (tap_row * args.staged_width + offset - args.first_offset) * GroupedConfig::kPositionBytes;
              const uint32_t* const tap = weights + (tap_row * args.kernel_w + taps.tap_first + k * taps.tap_step) * 32;
              multiply_tap<Storage>(acc, source, tap, lane);
            }
          }
        }
        if (!finite) {
#pragma unroll
          for (int i = 0; i < 4 * GroupedConfig::kFragments; ++i) {
            const int position = 16 * (i / 4) + lane / 4 + 8 * (i % 4 / 2);
            acc[i / 4][i % 4] = sum_of_present(staged, weights, args, tap_rows, taps, slice, row, begin, position,
                                               2 * (lane % 4) + i % 2);
          }
        }
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const int channel = min(2 * (lane % 4) + k, channels - 1);  // where there is none, nothing is stored
          const Storage* const to = out_row + channel * args.out_stride_c + first;
          const int past = static_cast<int>(reinterpret_cast<uintptr_t>(to) / sizeof(Storage) % GroupedConfig::kVector);
          Storage* const strip = held + (2 * (lane % 4) + k) * held_stride + past + phase;
#pragma unroll
          for (int m = 0; m < GroupedConfig::kFragments; ++m)
#pragma unroll
            for (int half = 0; half < 2; ++half)
              strip[(16 * m + lane / 4 + 8 * half) * args.stride_w] = to_storage<Storage>(
                  apply_epilogue<float, Storage>(acc[m][2 * half + k], args.epilogue, first_channel + channel));
        }
      }
      __syncwarp();
      store_strips(out_row, args.out_stride_c, held, held_stride, channels, first, count, lane);
      __syncwarp();
    }
  }
}

}  // namespace cuda
}  // namespace tconv
