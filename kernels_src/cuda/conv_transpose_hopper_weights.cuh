// Weights for the Hopper convolution: from PyTorch's layout to the tiles that wgmma reads.
//
// In:  weight [in_channels, out_channels/groups, kernel_h, kernel_w].
// Out: tiles [group][sweep][phase][ic block][tap][block of the sweep] of 64 output channels x 64 input channels
//      in 16 bits, a row of 128 bytes per output channel in the 128-byte swizzle, taps by ascending window row, then
//      column; channels beyond the end are zero.
//      With narrow_rows, of one phase of 64 x 64 channels at most: [block of 16 input channels][tap] of 64 output
//      channels x 16 input channels, a row of 32 bytes in the 32-byte swizzle.
// fp32 weights become fp16 numbers: fp16_containers.cuh.
// One block per (padded) output channel of a group.
#pragma once

#include "conv_transpose_hopper_types.h"
#ifdef TCONV_WALKS_DEPTH
#include "../call.h"
#include "fast_divisor.h"
#endif
#include "fp16_containers.cuh"
#include "overlapped_launch.cuh"

namespace tconv {
namespace cuda {
namespace hopper {

using namespace tconv::hopper;

template <typename Storage>
struct WeightsArgs {
  Plan plan;
  int kernel_h, kernel_w;
  bool narrow_rows;
  const Storage* weight;
  uint4* tiles;
  float* inv_scale;  // [groups * padded output channels]
  GuardState* guard;
#ifdef TCONV_WALKS_DEPTH  // a call of two dimensions has one tap in depth
  FastDivisor by_tap_channels;
  int kernel_depth, kernel_step, kernel_firsts[kMostResidues];  // by residue
#endif
};
#ifdef TCONV_WALKS_DEPTH

// Fills in what depends on the call's depth; args.plan is there.
template <typename Storage>
void describe_depth(WeightsArgs<Storage>& args, const ConvCall& call) {
  const bool walks = call.depth.walks();
  const int64_t taps = walks ? call.depth.taps : 1;
  args.by_tap_channels = FastDivisor::make(static_cast<uint32_t>(args.plan.in_channels_per_group / taps));
  args.kernel_depth = walks ? static_cast<int>(call.depth.kernel_depth) : 1;
  for (int i = 0; i < call.depth.residues(); ++i)
    args.kernel_firsts[i] = static_cast<int>(call.depth.kernel_first_of(i));
  args.kernel_step = static_cast<int>(call.depth.kernel_step);
}
#endif

struct WeightsConfig {
  static constexpr int kThreads = 256;
};

template <typename Storage>
__global__ void __launch_bounds__(WeightsConfig::kThreads)
    transform_weights_hopper_kernel(const __grid_constant__ WeightsArgs<Storage> args) {
  let_next_kernel_start();  // the convolution, which loads pixels before it awaits the weights
  const Plan& plan = args.plan;
  const int padded = plan.num_sweeps * plan.blocks_per_sweep * kBlockOC;
  const int group = blockIdx.x / padded, channel = blockIdx.x % padded;
#ifdef TCONV_JOINS_COLUMNS
  // A row of the tiles is a channel of the weight and one of the stride's columns.
  const int shift = plan.joined.slot_bits(), step = plan.joined.slots > 0 ? plan.joined.stride : 1;
#ifdef TCONV_GATHERS_PIXELS
  const int of_layer = plan.pair_columns != 0 ? plan.channel_of_row(channel) : plan.joined.channel_of(channel);
#else
  const int of_layer = plan.joined.channel_of(channel);
#endif
  const int slot = plan.joined.slot_of(channel);
  const int num_ic = plan.in_channels_per_group, num_oc = plan.out_channels_per_group >> shift;
  const bool real = of_layer < num_oc && slot < step;
#else
  const int num_ic = plan.in_channels_per_group, num_oc = plan.out_channels_per_group;
#ifdef TCONV_GATHERS_PIXELS
  const int of_layer = plan.channel_of_row(channel);
  const bool real = of_layer < num_oc;
#else
  const bool real = channel < num_oc;
#endif
#endif
  const int64_t taps = static_cast<int64_t>(args.kernel_h) * args.kernel_w;
#ifdef TCONV_WALKS_DEPTH
  // Weights of a pair of channels lie side by side, those of all depth taps.
  const int tap_channels = static_cast<int>(args.by_tap_channels.divisor);
  const int64_t run = args.kernel_depth * taps;
  const int residue = group & (1 << plan.residue_bits) - 1, part = group >> plan.residue_bits;
  const int first_oc = (part & (1 << plan.split_bits) - 1) * num_oc, all_oc = num_oc << plan.split_bits;
#ifdef TCONV_GATHERS_PIXELS
  const int first = of_layer;
#else
  const int first = channel;
#endif
  const Storage* source =
      args.weight + (static_cast<int64_t>(part >> plan.split_bits) * tap_channels * all_oc + first_oc + first) * run;
#else
#ifdef TCONV_SPLITS_CHANNELS
  const int part = group & (1 << plan.split_bits) - 1, all_oc = num_oc << plan.split_bits;
  const int64_t first_oc = static_cast<int64_t>(group >> plan.split_bits) * num_ic * all_oc + part * num_oc;
#ifdef TCONV_GATHERS_PIXELS
  const Storage* source = args.weight + (first_oc + of_layer) * taps;
#else
  const Storage* source = args.weight + (first_oc + channel) * taps;
#endif
#else
  const Storage* source = args.weight + (static_cast<int64_t>(group) * num_ic * num_oc + channel) * taps;
#endif
#endif
#ifndef TCONV_GATHERS_PIXELS
#ifdef TCONV_JOINS_COLUMNS
#ifdef TCONV_WALKS_DEPTH
  source += (of_layer - channel) * run;
#else
  source += (of_layer - channel) * taps;
#endif
#endif
#endif

  float scale = 1.0f;
  if constexpr (sizeof(Storage) == 4) {
#ifdef TCONV_WALKS_DEPTH
    const WeightScale found = find_weight_scale<WeightsConfig::kThreads>(
        source, real ? tap_channels : 0, run, all_oc * run, args.guard, InputScale(args.guard).value);
#else
#ifdef TCONV_SPLITS_CHANNELS
    const WeightScale found = find_weight_scale<WeightsConfig::kThreads>(source, real ? num_ic : 0, taps, all_oc * taps,
                                                                         args.guard, InputScale(args.guard).value);
#else
    const WeightScale found = find_weight_scale<WeightsConfig::kThreads>(source, real ? num_ic : 0, taps, num_oc * taps,
                                                                         args.guard, InputScale(args.guard).value);
#endif
#endif
#ifdef TCONV_INPUT_SCALE_FROM_DEVICE
    // Both scales together are no normal number.
    if (threadIdx.x == 0 && !(found.inverse >= 0x1p-126f && found.inverse <= 0x1p127f)) args.guard->out_of_range = 1;
#endif
    scale = found.scale;
#ifdef TCONV_WALKS_DEPTH
    if (threadIdx.x == 0) args.inv_scale[part * padded + channel] = found.inverse;  // the same of all residues
#else
    if (threadIdx.x == 0) args.inv_scale[blockIdx.x] = found.inverse;
#endif
  } else {
    if (threadIdx.x == 0) args.inv_scale[blockIdx.x] = 1.0f;
  }

#ifdef TCONV_GATHERS_PIXELS
  const int column = channel / 8 % 2 == 1 ? plan.pair_columns : 0;
#endif
  const int sweep = channel / (plan.blocks_per_sweep * kBlockOC);
  const int block = channel / kBlockOC % plan.blocks_per_sweep;
  const int row = channel % kBlockOC;
  // All tiles of all phases side by side: a phase has too few for the threads of a block.
  for (int i = threadIdx.x; i < plan.sweep_tiles * 8; i += WeightsConfig::kThreads) {
    const int chunk = i % 8;
    int phase_index = plan.last_tapped_phase;
    while (plan.phases[phase_index].taps_h == 0 || plan.phases[phase_index].weight_base > i / 8) --phase_index;
    const Phase& phase = plan.phases[phase_index];
    const int num_taps = phase.taps_h * phase.taps_w;
    const int tile_of_phase = i / 8 - phase.weight_base, tap = tile_of_phase % num_taps,
              ic_block = tile_of_phase / num_taps;
    const int kernel_row = phase.kernel_first_h + (phase.taps_h - 1 - tap / phase.taps_w) * plan.kernel_step_h;
#ifdef TCONV_JOINS_COLUMNS
    const int kernel_col =
        (phase.kernel_first_w + (phase.taps_w - 1 - tap % phase.taps_w) * plan.kernel_step_w) * step + slot -
        plan.joined.lead;
    const bool in_kernel = kernel_col >= 0 && kernel_col < args.kernel_w;
#else
    const int kernel_col = phase.kernel_first_w + (phase.taps_w - 1 - tap % phase.taps_w) * plan.kernel_step_w;
#endif
    uint32_t packed[4] = {0, 0, 0, 0};
#ifdef TCONV_JOINS_COLUMNS
    if (real && in_kernel) {
#else
    if (real) {
#endif
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int ic = ic_block * kBlockIC + chunk * 8 + 2 * k;
        Storage a = static_cast<Storage>(0.0f), b = a;
#ifdef TCONV_WALKS_DEPTH
        const int depth_tap = static_cast<int>(args.by_tap_channels.quotient(ic));
        const int64_t ic_of_tap = ic - depth_tap * tap_channels,
                      kernel_slice = args.kernel_firsts[residue] - depth_tap * args.kernel_step;
        const Storage* at =
            source + ic_of_tap * all_oc * run + kernel_slice * taps + kernel_row * args.kernel_w + kernel_col;
#ifdef TCONV_GATHERS_PIXELS
        at += column;
#endif
        if (ic < num_ic) a = at[0];
        if (ic + 1 < num_ic) b = at[all_oc * run];
#else
#ifdef TCONV_SPLITS_CHANNELS
        const Storage* at = source + static_cast<int64_t>(ic) * all_oc * taps + kernel_row * args.kernel_w + kernel_col;
#ifdef TCONV_GATHERS_PIXELS
        at += column;
#endif
        if (ic < num_ic) a = at[0];
        if (ic + 1 < num_ic) b = at[all_oc * taps];
#else
        const Storage* at = source + static_cast<int64_t>(ic) * num_oc * taps + kernel_row * args.kernel_w + kernel_col;
        if (ic < num_ic) a = at[0];
        if (ic + 1 < num_ic) b = at[num_oc * taps];
#endif
#endif
        if constexpr (sizeof(Storage) == 4) {
          packed[k] = pack_pair(a * scale, b * scale);
        } else {
          packed[k] = pack_pair(a, b);
        }
      }
    }
    const uint4 unit = make_uint4(packed[0], packed[1], packed[2], packed[3]);
    if (args.narrow_rows) {
      if (chunk / 2 * 16 < num_ic)
        args.tiles[((chunk / 2 * num_taps + tap) * kBlockOC + row) * 2 + (chunk % 2 ^ row / 4 % 2)] = unit;
      continue;
    }
    const int64_t tile =
        (static_cast<int64_t>(group) * plan.num_sweeps + sweep) * plan.sweep_tiles + phase.weight_base + tile_of_phase;
    args.tiles[(tile * plan.blocks_per_sweep + block) * (kTapBytes / 16) + row * 8 + (chunk ^ (row % 8))] = unit;
  }
}

}  // namespace hopper
}  // namespace cuda
}  // namespace tconv
