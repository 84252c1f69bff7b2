// Transposed convolution of volumes with few input channels: the time is the outputs', so inputs and weights are to
// cost next to nothing. The layer's numbers are compiled in (few_channels_layer.h), a call is the slices of one residue
// in depth (depth_walk.h), products are fp32's, also with TF32 allowed.
//
// A lane owns a column position and kRows row positions below each other, with all stride phases of both; what they
// read of all channels stays in its registers. A block's weights lie in shared memory in the order of use; channel
// after channel, four of them at a time are multiplied into kRows outputs each. A warp stores 32 neighbours at once.
#pragma once

#include "../epilogue.h"
#include "few_channels_layer.h"
#include "mma_sync.cuh"
#include "storage.cuh"

namespace tconv {
namespace cuda {

template <typename Layer, int kDepthTaps>
struct FewChannelsConfig {
  static TCONV_HD constexpr FewChannelsAxis height() { return few_channels_axis<Layer>(1); }
  static TCONV_HD constexpr FewChannelsAxis width() { return few_channels_axis<Layer>(2); }

  static constexpr int kWarps = 4;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kOutChannels = 16;  // of a block
  static constexpr int kMostHeld = 72;     // inputs in a lane's registers
  static constexpr int kMostSums = 16;     // and sums

  static constexpr int held(int rows) {
    return Layer::kChannels * kDepthTaps * (height().window() + rows - 1) * width().window();
  }
  static constexpr int sums(int rows) { return rows * height().stride * width().stride; }
  static constexpr bool fits(int rows) { return held(rows) <= kMostHeld && sums(rows) <= kMostSums; }
  static constexpr int kRows = fits(4) ? 4 : fits(2) ? 2 : 1;
  static constexpr int kMinBlocks = held(kRows) > 48 ? 3 : 4;  // of a multiprocessor: as registers allow
  // Pairs, or one output: columns further apart are stored one by one elsewhere.
  static constexpr bool kUsable = fits(1) && width().stride <= 2;
  static constexpr int kBlockRows = kWarps * kRows;  // positions

  static constexpr int kWeights = Layer::kChannels * kDepthTaps * height().kernel * width().kernel;  // of a channel
  static constexpr int kStaged = (kWeights + 3) / 4 * 4;
  static constexpr int kSmemBytes = kOutChannels * kStaged * static_cast<int>(sizeof(float));
};

template <typename Storage>
struct FewChannelsArgs {
  const Storage* x;
  const Storage* weight;
  Storage* out;
  EpilogueArgs<Storage> epilogue;
  int64_t x_stride_n, x_stride_d, x_stride_c, x_stride_h, x_stride_w;
  int64_t out_stride_n, out_stride_d, out_stride_c;
  int in_depth, in_h, in_w, out_h, out_w, out_channels, slices;
  int depth_first, depth_step, kernel_depth, kernel_first, kernel_step;
  int row_blocks, column_blocks, channel_blocks;
};

// What a lane holds of x: [channel][depth tap][row][column].
template <typename Config, typename Layer, int kDepthTaps>
using FewChannelsInputs =
    float[Layer::kChannels][kDepthTaps][Config::height().window() + Config::kRows - 1][Config::width().window()];

// Zeros are absent inputs.
template <typename Config, typename Layer, int kDepthTaps, typename Storage>
__device__ __forceinline__ void load_few_channels(FewChannelsInputs<Config, Layer, kDepthTaps>& held,
                                                  const FewChannelsArgs<Storage>& args, const Storage* x, int slice,
                                                  int first_row, int first_column) {
  constexpr int kRows = Config::height().window() + Config::kRows - 1, kColumns = Config::width().window();
#pragma unroll
  for (int t = 0; t < kDepthTaps; ++t) {
    const int read = slice + args.depth_first + t * args.depth_step;
    const bool slice_exists = read >= 0 && read < args.in_depth;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int row = first_row + r;
      const bool row_exists = slice_exists && row >= 0 && row < args.in_h;
#pragma unroll
      for (int k = 0; k < kColumns; ++k) {
        const int column = first_column + k;
        const bool exists = row_exists && column >= 0 && column < args.in_w;
        const Storage* const from = x + read * args.x_stride_d + row * args.x_stride_h + column * args.x_stride_w;
#pragma unroll
        for (int c = 0; c < Layer::kChannels; ++c)
          held[c][t][r][k] = exists ? static_cast<float>(from[c * args.x_stride_c]) : 0.0f;
      }
    }
  }
}

// One output without the products of absent inputs, which an infinite weight would make NaN.
template <typename Config, typename Layer, int kDepthTaps, typename Storage>
__device__ __noinline__ float sum_of_present_channels(const FewChannelsArgs<Storage>& args, const Storage* x,
                                                      const float* weights, int slice, int row, int column,
                                                      int row_phase, int column_phase) {
  constexpr FewChannelsAxis kHeight = Config::height(), kWidth = Config::width();
  float sum = 0.0f;
#pragma unroll 1
  for (int i = 0; i < Config::kWeights; ++i) {
    const int kw = i % kWidth.kernel, kh = i / kWidth.kernel % kHeight.kernel;
    const int rest = i / kWidth.kernel / kHeight.kernel, t = rest % kDepthTaps, c = rest / kDepthTaps;
    if (kHeight.residue(kh) != row_phase || kWidth.residue(kw) != column_phase) continue;
    const int read = slice + args.depth_first + t * args.depth_step;
    const int in_row = row + kHeight.offset(kh), in_column = column + kWidth.offset(kw);
    if (read < 0 || read >= args.in_depth || in_row < 0 || in_row >= args.in_h) continue;
    if (in_column < 0 || in_column >= args.in_w) continue;
    const Storage* const from = x + read * args.x_stride_d + c * args.x_stride_c + in_row * args.x_stride_h;
    sum = fmaf(static_cast<float>(from[in_column * args.x_stride_w]), weights[i], sum);
  }
  return sum;
}

// Turns a lane's two neighbouring outputs of 64 in a row into number `lane` and number 32 + `lane` of them: a row
// begins anywhere, so pairs would be off their boundary in every second one. Lanes 2 s and 2 s + 1 want what lane s
// has, and in the other half lane 16 + s: in one exchange the lower lanes give their first and the upper their second,
// in the other one the reverse.
__device__ __forceinline__ void spread_pair(float& first, float& second, int lane) {
  const bool lower = lane < 16, even = lane % 2 == 0;
  const int near = lane / 2, far = 16 + lane / 2;
  const float a = __shfl_sync(0xFFFFFFFFu, lower ? first : second, even ? near : far);
  const float b = __shfl_sync(0xFFFFFFFFu, lower ? second : first, even ? far : near);
  first = even ? a : b;
  second = even ? b : a;
}

template <typename Layer, int kDepthTaps, typename Storage>
__global__ void __launch_bounds__(FewChannelsConfig<Layer, kDepthTaps>::kThreads,
                                  FewChannelsConfig<Layer, kDepthTaps>::kMinBlocks)
    conv_transpose_few_channels_kernel(const __grid_constant__ FewChannelsArgs<Storage> args) {
  using Config = FewChannelsConfig<Layer, kDepthTaps>;
  constexpr FewChannelsAxis kHeight = Config::height(), kWidth = Config::width();
  constexpr int kPhases = kHeight.stride * kWidth.stride, kOneSlice = kHeight.kernel * kWidth.kernel;
  float* const weights = reinterpret_cast<float*>(dynamic_smem());  // [out channel][kStaged]
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  int rest = blockIdx.x;
  const auto next_digit = [&rest](int radix) {
    const int quotient = rest / radix, digit = rest - quotient * radix;
    rest = quotient;
    return digit;
  };
  const int column_block = next_digit(args.column_blocks), row_block = next_digit(args.row_blocks);
  const int channel0 = next_digit(args.channel_blocks) * Config::kOutChannels;
  const int slice = next_digit(args.slices), volume = rest;
  const int channels = min(Config::kOutChannels, args.out_channels - channel0);

  for (int i = threadIdx.x; i < channels * Config::kStaged; i += Config::kThreads) {
    const int channel = i / Config::kStaged, of_channel = i - channel * Config::kStaged;
    const int tap = of_channel % kOneSlice, slice_of = of_channel / kOneSlice;
    const int t = slice_of % kDepthTaps, in = slice_of / kDepthTaps;
    float value = 0.0f;
    if (of_channel < Config::kWeights) {
      const int64_t run = int64_t{in} * args.out_channels + channel0 + channel;
      const int64_t of_run = (args.kernel_first - t * args.kernel_step) * kOneSlice + tap;
      value = static_cast<float>(args.weight[run * args.kernel_depth * kOneSlice + of_run]);
    }
    weights[i] = value;
  }
  __syncthreads();
  bool finite = true;
  for (int i = lane; i < channels * Config::kStaged; i += 32) finite = finite && isfinite(weights[i]);
  finite = __all_sync(0xFFFFFFFFu, finite);

  const int row0 = row_block * Config::kBlockRows + warp * Config::kRows, column = column_block * 32 + lane;
  if (row0 * kHeight.stride >= args.out_h) return;  // the same for the warp
  const Storage* const x = args.x + volume * args.x_stride_n;
  FewChannelsInputs<Config, Layer, kDepthTaps> held;
  load_few_channels<Config, Layer, kDepthTaps>(held, args, x, slice, row0 + kHeight.least_offset(),
                                               column + kWidth.least_offset());
  const int first_column = column_block * 32 * kWidth.stride, room = args.out_w - first_column;
  const int rows = min(Config::kRows * kHeight.stride, args.out_h - row0 * kHeight.stride);  // that there are
  Storage* out = args.out + volume * args.out_stride_n + slice * args.out_stride_d + channel0 * args.out_stride_c +
                 int64_t{row0} * kHeight.stride * args.out_w + first_column + lane;

#pragma unroll 1
  for (int channel = 0; channel < channels; ++channel, out += args.out_stride_c) {
    const float* const of_channel = weights + channel * Config::kStaged;
    float sums[Config::kRows][kHeight.stride][kWidth.stride] = {};
#pragma unroll
    for (int begin = 0; begin < Config::kStaged; begin += 4) {
      const float4 loaded = *reinterpret_cast<const float4*>(of_channel + begin);
      const float four[4] = {loaded.x, loaded.y, loaded.z, loaded.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = begin + e;
        if (i >= Config::kWeights) continue;
        const int kw = i % kWidth.kernel, kh = i / kWidth.kernel % kHeight.kernel;
        const int t = i / kOneSlice % kDepthTaps, c = i / kOneSlice / kDepthTaps;
        const int row = kHeight.offset(kh) - kHeight.least_offset(), k = kWidth.offset(kw) - kWidth.least_offset();
#pragma unroll
        for (int r = 0; r < Config::kRows; ++r) {
          float& sum = sums[r][kHeight.residue(kh)][kWidth.residue(kw)];
          sum = fmaf(held[c][t][row + r][k], four[e], sum);
        }
      }
    }
    if (!finite) {
#pragma unroll 1
      for (int i = 0; i < Config::kRows * kPhases; ++i) {
        const int r = i / kPhases, phase_h = i % kPhases / kWidth.stride, phase_w = i % kWidth.stride;
        const float sum = sum_of_present_channels<Config, Layer, kDepthTaps>(args, x, of_channel, slice, row0 + r,
                                                                             column, phase_h, phase_w);
#pragma unroll
        for (int k = 0; k < Config::kRows * kPhases; ++k)  // registers have no index
          if (k == i) sums[k / kPhases][k % kPhases / kWidth.stride][k % kWidth.stride] = sum;
      }
    }
    const float bias = channel_bias<float, Storage>(args.epilogue, channel0 + channel);
    // Before the first store, behind which the steps' operands would be read again.
#pragma unroll
    for (int r = 0; r < Config::kRows; ++r)
#pragma unroll
      for (int i = 0; i < kPhases; ++i) {
        float& sum = sums[r][i / kWidth.stride][i % kWidth.stride];
        sum = Epilogue::apply<float, Storage>(sum + bias, args.epilogue, channel0 + channel);
      }
    Storage* to = out;
#pragma unroll
    for (int below = 0; below < Config::kRows * kHeight.stride; ++below, to += args.out_w) {
      if (below >= rows) break;
      float first = sums[below / kHeight.stride][below % kHeight.stride][0];
      if constexpr (kWidth.stride == 2) {
        float second = sums[below / kHeight.stride][below % kHeight.stride][1];
        spread_pair(first, second, lane);
        if (lane + 32 < room) to[32] = to_storage<Storage>(second);
      }
      if (lane < room) *to = to_storage<Storage>(first);
    }
  }
}

}  // namespace cuda
}  // namespace tconv
