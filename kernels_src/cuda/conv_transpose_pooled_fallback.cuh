// The pooled convolution for any fp32 operands: TF32 numbers, whose range is fp32's, where the Hopper kernel's fp16
// containers cannot hold them. Launched behind that kernel over the same outputs and moments, it does nothing while the
// guard is down; so it is one launch without scratch memory, and simple rather than fast: weights through shared
// memory, inputs from the cache.
//
// out [batch][out_channels][out_h / 2][out_w / 2] of a stride-1 convolution: the largest value of a 2 x 2 window where
// the channel's BatchNorm weight is positive, the smallest where it is negative, the largest magnitude where it is
// zero. partials [batch][num_partials][out_channels]: moments of the unpooled outputs, all in the first entry, the rest
// empty.
//
// A block computes 16 channels of a sample, a warp two rows x 8 kColumnTiles columns at a time: mma's fragments hold
// both rows and both columns of a window in one thread.
#pragma once

#include "../epilogue.h"
#include "../moments.h"
#include "check.h"
#include "mma_sync.cuh"
#include "pool_window.cuh"

namespace tconv {
namespace cuda {

struct PooledFallbackConfig {
  static constexpr int kWarps = 8;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kChannels = 16;    // of the output, a block's
  static constexpr int kInChannels = 8;   // of a product
  static constexpr int kColumnTiles = 5;  // of 8 columns, a warp's
  static constexpr int kTaps = 32;        // staged at a time
};

struct PooledFallbackArgs {
  ConvTransposeLayer layer;  // stride 1
  const float* x;
  const float* weight;
  const float* pool_weight;  // [out_channels] or null: all ones
  EpilogueArgs<float> epilogue;
  float* out;
  Moments* partials;  // or null
  int64_t num_partials;
  const int* only_if;  // where this holds 0, nothing is done
};

// 8 input channels x 16 output channels x some taps of the weights, rounded, zero where there is no channel.
struct WeightStage {
  static constexpr int kRow = PooledFallbackConfig::kTaps + 1;  // odd: neighbouring channels fall into different banks
  float values[PooledFallbackConfig::kInChannels][PooledFallbackConfig::kChannels][kRow];

  // All threads of the block.
  __device__ __forceinline__ void load(const PooledFallbackArgs& args, int64_t group, int channel0, int in0, int tap0,
                                       int taps) {
    const ConvTransposeLayer& p = args.layer;
    const int num_in = static_cast<int>(p.in_channels / p.groups),
              num_out = static_cast<int>(p.out_channels / p.groups);
    const int64_t plane = p.kernel_h * p.kernel_w;
    const int count = PooledFallbackConfig::kInChannels * PooledFallbackConfig::kChannels * taps;
    for (int i = threadIdx.x; i < count; i += PooledFallbackConfig::kThreads) {
      const int tap = i % taps, channel = i / taps % PooledFallbackConfig::kChannels,
                in = i / taps / PooledFallbackConfig::kChannels;
      float value = 0.0f;
      if (in0 + in < num_in && channel0 + channel < num_out)
        value = args.weight[((group * num_in + in0 + in) * num_out + channel0 + channel) * plane + tap0 + tap];
      values[in][channel][tap] = __uint_as_float(round_to_tf32(value));
    }
  }

  // This lane's part of a tap's m16 x k8 fragment: channels lane / 4 and 8 behind, input channels lane % 4 and 4
  // behind.
  __device__ __forceinline__ uint4 fragment(int tap, int lane) const {
    const int channel = lane / 4, in = lane % 4;
    return make_uint4(__float_as_uint(values[in][channel][tap]), __float_as_uint(values[in][channel + 8][tap]),
                      __float_as_uint(values[in + 4][channel][tap]), __float_as_uint(values[in + 4][channel + 8][tap]));
  }
};

// acc[row][tile]: rows row0 and row0 + 1, columns col0 + 8 tile.. of the outputs, 16 channels each.
using PooledFallbackSums = float[2][PooledFallbackConfig::kColumnTiles][4];

// Adds the products of the staged taps. `in_plane`: this lane's input channel lane % 4 of the stage; `num_in` real ones
// from there.
__device__ __forceinline__ void multiply_staged(PooledFallbackSums& acc, const PooledFallbackArgs& args,
                                                const WeightStage& stage, const float* in_plane, int num_in, int row0,
                                                int col0, int tap0, int taps, int lane) {
  const ConvTransposeLayer& p = args.layer;
  const int kernel_w = static_cast<int>(p.kernel_w), in_h = static_cast<int>(p.in_h), in_w = static_cast<int>(p.in_w);
  const int row_stride = static_cast<int>(p.x_stride_h), col_stride = static_cast<int>(p.x_stride_w);
  const float* const planes[2] = {in_plane, in_plane + 4 * p.x_stride_c};
  for (int i = 0; i < taps; ++i) {
    const int tap_h = (tap0 + i) / kernel_w, tap_w = tap0 + i - tap_h * kernel_w;
    const uint4 a = stage.fragment(i, lane);
    const int first_row = row0 + static_cast<int>(p.padding_h - tap_h * p.dilation_h);
    const int first_col = col0 + lane / 4 + static_cast<int>(p.padding_w - tap_w * p.dilation_w);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int in_row = first_row + row;
      if (in_row < 0 || in_row >= in_h) continue;  // the same for the warp
      uint32_t b[PooledFallbackConfig::kColumnTiles][2];
#pragma unroll
      for (int tile = 0; tile < PooledFallbackConfig::kColumnTiles; ++tile)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int col = first_col + 8 * tile;
          const bool exists = col >= 0 && col < in_w && lane % 4 + 4 * half < num_in;
          b[tile][half] = exists ? round_to_tf32(__ldg(planes[half] + in_row * row_stride + col * col_stride)) : 0u;
        }
#pragma unroll
      for (int tile = 0; tile < PooledFallbackConfig::kColumnTiles; ++tile)
        mma_m16n8k8_tf32(acc[row][tile], a, b[tile][0], b[tile][1]);
    }
  }
}

// Moments of what a quad of lanes holds of one channel; `exists(row, tile, e)` for this lane's values. In every lane of
// the quad.
template <typename Value, typename Exists>
__device__ __forceinline__ Moments quad_moments(Value&& value, Exists&& exists) {
  const auto quad_sum = [](float v) {
    v += __shfl_xor_sync(0xFFFFFFFFu, v, 1);
    return v + __shfl_xor_sync(0xFFFFFFFFu, v, 2);
  };
  const auto over_all = [&](auto&& term) {
    float sum = 0.0f;
#pragma unroll
    for (int row = 0; row < 2; ++row)
#pragma unroll
      for (int tile = 0; tile < PooledFallbackConfig::kColumnTiles; ++tile)
#pragma unroll
        for (int e = 0; e < 2; ++e)
          if (exists(row, tile, e)) sum += term(value(row, tile, e));
    return quad_sum(sum);
  };
  const float count = over_all([](float) { return 1.0f; });
  const float mean = over_all([](float v) { return v; }) / (count > 0.0f ? count : 1.0f);
  return Moments{count, mean, over_all([mean](float v) { return (v - mean) * (v - mean); })};
}

#ifndef TCONV_WITHOUT_FP32
__global__ void __launch_bounds__(PooledFallbackConfig::kThreads, 1)
    conv_transpose_pooled_fallback_kernel(const __grid_constant__ PooledFallbackArgs args) {
  using Config = PooledFallbackConfig;
  await_previous_kernels();
  if (*args.only_if == 0) return;
  __shared__ WeightStage stage;
  __shared__ Moments shared_moments[Config::kWarps][Config::kChannels];
  const ConvTransposeLayer& p = args.layer;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int num_in = static_cast<int>(p.in_channels / p.groups), num_out = static_cast<int>(p.out_channels / p.groups);
  const int taps = static_cast<int>(p.kernel_h * p.kernel_w);
  const int out_h = static_cast<int>(p.out_h), out_w = static_cast<int>(p.out_w);
  const int channel_blocks = (num_out + Config::kChannels - 1) / Config::kChannels;
  const int64_t items = p.batch * p.groups * channel_blocks;
  constexpr int kRows = 2 * Config::kWarps, kCols = 8 * Config::kColumnTiles;

  for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const int channel0 = static_cast<int>(item % channel_blocks) * Config::kChannels;
    const int64_t group = item / channel_blocks % p.groups, sample = item / channel_blocks / p.groups;
    const float* x = args.x + sample * p.x_stride_n + (group * num_in + lane % 4) * p.x_stride_c;
    MomentsF64 moments[2];  // of channels lane / 4 and 8 behind
    for (int block_row = 0; block_row < out_h; block_row += kRows) {
      const int row0 = block_row + 2 * warp;
      for (int col0 = 0; col0 < out_w; col0 += kCols) {
        PooledFallbackSums acc = {};
        for (int in0 = 0; in0 < num_in; in0 += Config::kInChannels) {
          for (int tap0 = 0; tap0 < taps; tap0 += Config::kTaps) {
            const int staged = min(Config::kTaps, taps - tap0);
            __syncthreads();  // the stage before is done with
            stage.load(args, group, channel0, in0, tap0, staged);
            __syncthreads();
            if (row0 < out_h)
              multiply_staged(acc, args, stage, x + in0 * p.x_stride_c, num_in - in0, row0, col0, tap0, staged, lane);
          }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int channel_of_group = channel0 + lane / 4 + 8 * half;
          const bool real = channel_of_group < num_out;
          const int64_t channel = group * num_out + (real ? channel_of_group : 0);
          const auto col_of = [&](int tile, int e) { return col0 + 8 * tile + 2 * (lane % 4) + e; };
          const auto value = [&](int row, int tile, int e) -> float& { return acc[row][tile][2 * half + e]; };
#pragma unroll
          for (int row = 0; row < 2; ++row)
#pragma unroll
            for (int tile = 0; tile < Config::kColumnTiles; ++tile)
#pragma unroll
              for (int e = 0; e < 2; ++e)
                value(row, tile, e) = apply_epilogue<float, float>(value(row, tile, e), args.epilogue, channel);
          const Moments here = quad_moments(
              value, [&](int row, int tile, int e) { return real && row0 + row < out_h && col_of(tile, e) < out_w; });
          moments[half].combine(here.count, here.mean, here.m2);

          const float weight = args.pool_weight != nullptr ? args.pool_weight[channel] : 1.0f;
          const float sign = weight < 0.0f ? -1.0f : 1.0f;
          const auto turned = [&](float v) { return weight == 0.0f ? fabsf(v) : v * sign; };
          if (!real || row0 + 1 >= out_h) continue;
          float* const out_row =
              args.out + ((sample * p.out_channels + channel) * (out_h / 2) + row0 / 2) * (out_w / 2);
#pragma unroll
          for (int tile = 0; tile < Config::kColumnTiles; ++tile) {
            if (col_of(tile, 1) >= out_w) continue;
            const float upper = norm::max_or_nan(turned(value(0, tile, 0)), turned(value(0, tile, 1)));
            const float lower = norm::max_or_nan(turned(value(1, tile, 0)), turned(value(1, tile, 1)));
            out_row[col_of(tile, 0) / 2] = sign * norm::max_or_nan(upper, lower);
          }
        }
      }
    }
    if (args.partials == nullptr) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half)
      if (lane % 4 == 0)
        shared_moments[warp][lane / 4 + 8 * half] =
            Moments{static_cast<float>(moments[half].count), static_cast<float>(moments[half].mean),
                    static_cast<float>(moments[half].m2)};
    __syncthreads();
    const int channel = channel0 + static_cast<int>(threadIdx.x);
    if (threadIdx.x < Config::kChannels && channel < num_out) {
      MomentsF64 sum;
      for (const auto& of_warp : shared_moments)
        sum.combine(of_warp[threadIdx.x].count, of_warp[threadIdx.x].mean, of_warp[threadIdx.x].m2);
      Moments* to = args.partials + sample * args.num_partials * p.out_channels + group * num_out + channel;
      *to = Moments{static_cast<float>(sum.count), static_cast<float>(sum.mean), static_cast<float>(sum.m2)};
      for (int64_t k = 1; k < args.num_partials; ++k) to[k * p.out_channels] = Moments{0.0f, 0.0f, 0.0f};
    }
    __syncthreads();
  }
}

// `blocks`: as many as run at once. Other arguments as in the parameters.
inline int64_t launch_pooled_fallback(const ConvCall& call, float* out, const float* pool_weight, Moments* partials,
                                      int64_t num_partials, const int* only_if, int blocks) {
  PooledFallbackArgs args;
  args.layer = call.layer;
  args.x = static_cast<const float*>(call.x);
  args.weight = static_cast<const float*>(call.weight);
  args.pool_weight = pool_weight;
  args.epilogue = make_epilogue_args<float>(call);
  args.out = out;
  args.partials = partials;
  args.num_partials = num_partials;
  args.only_if = only_if;
  return launch_overlapped(conv_transpose_pooled_fallback_kernel, dim3(static_cast<unsigned>(blocks)),
                           dim3(PooledFallbackConfig::kThreads), 0, call.stream, args);
}
#endif

}  // namespace cuda
}  // namespace tconv
