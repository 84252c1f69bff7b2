// Weights [in_channels, out_channels/groups, kernel_h, kernel_w] -> the tensor-core kernel's weight stream: scaled and
// rounded, or split, zero-padded to whole blocks, in mma fragment order, tiles in the order of use. Run once per call.
//
// Stream: [group][out-channel block][tile], a tile being one tap x BLOCK_IC x BLOCK_OC; order of tiles: see
// window_stream_offset. Within a tile [piece][k-step][m16][lane] of 16 bytes.
// The kernel also tabulates every phase of both axes for the product kernel: [stride_h + stride_w] AxisPhase.
#pragma once

#include "conv_transpose_portable_config.h"
#include "portable_operands.cuh"
#include "overlapped_launch.cuh"

namespace tconv {
namespace cuda {

template <typename Storage>
struct WeightTransformArgs {
  ConvTransposeLayer layer;
  const Storage* weight;
  uint4* stream;
  AxisPhase* phases;
  const float* inv_scale;  // [out_channels], containers only: find_weight_scale's inverse
  const int* only_if;      // null, or on the device: nothing is done where it holds 0
  int group_h, group_w;    // taps per window
  int tap_step_h, tap_step_w;
  int num_ic_blocks, num_oc_blocks;
  int64_t num_fragments;  // 16-byte fragments of one piece, all tiles
};

// Index of the tile of tap (kernel_row, kernel_column) and channel block in its stream.
template <typename Args>
__device__ __forceinline__ int64_t stream_tile(const Args& args, int kernel_row, int kernel_column, int ic_block) {
  const int kernel_h = static_cast<int>(args.layer.kernel_h), kernel_w = static_cast<int>(args.layer.kernel_w);
  const int first_h = kernel_row % args.tap_step_h, tap_h = kernel_row / args.tap_step_h;
  const int first_w = kernel_column % args.tap_step_w, tap_w = kernel_column / args.tap_step_w;
  const int taps_h = taps_in_class(first_h, kernel_h, args.tap_step_h);
  const int taps_w = taps_in_class(first_w, kernel_w, args.tap_step_w);
  const int taps_before_phase = taps_in_earlier_classes(first_h, kernel_h, args.tap_step_h) * kernel_w +
                                taps_h * taps_in_earlier_classes(first_w, kernel_w, args.tap_step_w);
  const int begin_h = tap_h / args.group_h * args.group_h, end_h = min(begin_h + args.group_h, taps_h);
  const int begin_w = tap_w / args.group_w * args.group_w, end_w = min(begin_w + args.group_w, taps_w);
  const int taps_before_window = begin_h * taps_w + (end_h - begin_h) * begin_w;
  // The window starts where its last tap reads, so taps are walked from the last to the first.
  const int tap_in_window = (end_h - 1 - tap_h) * (end_w - begin_w) + (end_w - 1 - tap_w);
  return window_stream_offset(taps_before_phase, taps_before_window, args.num_ic_blocks) +
         static_cast<int64_t>(ic_block) * (end_h - begin_h) * (end_w - begin_w) + tap_in_window;
}

// One block per output channel.
constexpr int kWeightScaleThreads = 256;
__global__ void __launch_bounds__(kWeightScaleThreads)
    find_weight_scales_kernel(ConvTransposeLayer p, const float* weight, float* inv_scale, GuardState* guard) {
  const int64_t taps = p.kernel_h * p.kernel_w, oc_per_group = p.out_channels / p.groups;
  const int64_t ic_per_group = p.in_channels / p.groups, group = blockIdx.x / oc_per_group;
  const float* const first = weight + (group * ic_per_group * oc_per_group + blockIdx.x % oc_per_group) * taps;
  const WeightScale found =
      find_weight_scale<kWeightScaleThreads>(first, ic_per_group, taps, oc_per_group * taps, guard);
  if (threadIdx.x == 0) inv_scale[blockIdx.x] = found.inverse;
}

template <typename Config>
__global__ void __launch_bounds__(256)
    transform_weights_portable_kernel(WeightTransformArgs<typename NumericTraits<Config::kNumeric>::Storage> args) {
  using Storage = typename NumericTraits<Config::kNumeric>::Storage;
  await_previous_kernels();
  if (args.only_if != nullptr && *args.only_if == 0) return;
  constexpr int kPieceFragments = Config::WEIGHT_PIECE_BYTES / 16;
  constexpr int kHalves = Config::kElementBytes == 2 ? 2 : 1;  // elements per 32-bit fragment register
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t num_threads = static_cast<int64_t>(gridDim.x) * blockDim.x;

  const int64_t stride_h = args.layer.stride_h, num_phases = stride_h + args.layer.stride_w;
  for (int64_t i = thread; i < num_phases; i += num_threads)
    args.phases[i] = i < stride_h ? phase_h(args.layer, i) : phase_w(args.layer, i - stride_h);

  const int64_t kernel_taps = args.layer.kernel_h * args.layer.kernel_w;
  const int64_t oc_per_group = args.layer.out_channels / args.layer.groups;
  const int64_t ic_per_group = args.layer.in_channels / args.layer.groups;
  for (int64_t i = thread; i < args.num_fragments; i += num_threads) {
    const int fragment = static_cast<int>(i % kPieceFragments);
    int64_t rest = i / kPieceFragments;
    const int tap = static_cast<int>(rest % kernel_taps);
    rest /= kernel_taps;
    const int ic_block = static_cast<int>(rest % args.num_ic_blocks);
    rest /= args.num_ic_blocks;
    const int oc_block = static_cast<int>(rest % args.num_oc_blocks);
    const int64_t group = rest / args.num_oc_blocks;

    const int lane = fragment % 32, m16 = fragment / 32 % Config::kRowTiles, k_step = fragment / 32 / Config::kRowTiles;
    uint32_t high[4], low[4] = {};
#pragma unroll
    for (int r = 0; r < 4; ++r) {  // register r of mma's A: rows +8 for odd r, second half of k for r >= 2
      const int64_t oc = oc_block * Config::BLOCK_OC + m16 * 16 + lane / 4 + (r % 2) * 8;
      const int64_t ic = ic_block * Config::BLOCK_IC + (k_step * 8 + (r / 2) * 4 + lane % 4) * kHalves;
      const bool real_channel = oc < oc_per_group;
      Storage values[kHalves];
#pragma unroll
      for (int e = 0; e < kHalves; ++e) {
        values[e] = static_cast<Storage>(0.0f);
        if (real_channel && ic + e < ic_per_group)
          values[e] = args.weight[((group * ic_per_group + ic + e) * oc_per_group + oc) * kernel_taps + tap];
      }
      if constexpr (Config::kStrict) {
        const SplitValue v = split_fp32(__float_as_uint(values[0]));
        high[r] = v.high;
        low[r] = v.low;
      } else if constexpr (Config::kContainers) {
        const float scale = real_channel ? scale_of_inverse(args.inv_scale[group * oc_per_group + oc]) : 0.0f;
        high[r] = pack_pair(values[0] * scale, values[1] * scale);
      } else {
        high[r] = pack_pair(values[0], values[1]);
      }
    }
    const int64_t tiles_per_block = kernel_taps * args.num_ic_blocks;
    const int64_t tile = (group * args.num_oc_blocks + oc_block) * tiles_per_block +
                         stream_tile(args, static_cast<int>(tap / args.layer.kernel_w),
                                     static_cast<int>(tap % args.layer.kernel_w), ic_block);
    uint4* out = args.stream + tile * (Config::WEIGHT_TILE_BYTES / 16) + fragment;
    out[0] = make_uint4(high[0], high[1], high[2], high[3]);
    if constexpr (Config::kStrict) out[kPieceFragments] = make_uint4(low[0], low[1], low[2], low[3]);
  }
}

}  // namespace cuda
}  // namespace tconv
