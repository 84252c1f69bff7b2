// The gathered kernel's plan (conv_transpose_gathered.cuh): what it is expected to cost, beside the other Hopper
// kernels. Plain host C++.
#pragma once

#include <cstdlib>

#include "conv_transpose_hopper_plan.h"

namespace tconv {
namespace hopper {

struct GatheredConfig {
  static constexpr int kBlocks = 2;  // of 64 output channels, a consumer warpgroup each
  static constexpr int kProducers = 128;
  static constexpr int kThreads = kBlocks * 128 + kProducers;
  // Rows and columns of input and phases, and what taps reach: sums of three of them, two a register, have 16 bits.
  static constexpr int kMostSide = 1 << 13;

  static constexpr int stage_bytes(int n) { return kBlocks * kTapBytes + n * kPixelBytes; }
  // As many as shared memory holds beside barriers and places of outputs.
  static constexpr int stages(int n) { return n > 128 ? 4 : 6; }
  static constexpr int barriers_at(int n) { return stages(n) * stage_bytes(n); }
  static constexpr int places_at(int n) { return barriers_at(n) + 2 * 8 * stages(n); }
  static constexpr int smem_bytes(int n) { return places_at(n) + n * 4; }
};

// Makes one phase of two of neighbouring columns, where all of them read the same pixels and have as many outputs.
inline void pair_phases(Plan& plan, const ConvTransposeLayer& p) {
  if (p.stride_w != 2 || p.out_w % 2 != 0) return;
  for (int i = 0; i < plan.num_phases; i += 2) {
    const Phase &even = plan.phases[i], &odd = plan.phases[i + 1];
    if (even.taps_w != odd.taps_w || even.taps_h != odd.taps_h || even.col_shift != odd.col_shift) return;
  }
  const int tapped = plan.last_tapped_phase / 2 * 2;
  plan.pair_columns = plan.phases[tapped + 1].kernel_first_w - plan.phases[tapped].kernel_first_w;
  plan.num_phases /= 2, plan.last_tapped_phase /= 2;
  for (int i = 1; i < plan.num_phases; ++i) plan.phases[i] = plan.phases[2 * i];
}

// Cycles of the busiest SM.
inline double gathered_cost(const Plan& plan, const ConvTransposeLayer& p, int64_t packed_values, int n,
                            bool sixteen_bit, int num_sms) {
  // Four steps of both warpgroups, bound by reading both operands from shared memory; the rest is waiting. Measured.
  const double of_block = n > 128 ? 900 : 450;
  double sum = 0, longest = 0, tiles = 0;
  for (int i = 0; i < plan.num_phases; ++i) {
    const Phase& phase = plan.phases[i];
    const double count = 1.0 * ceil_div(p.batch * phase.out_count_h * phase.out_count_w, n) * plan.num_sweeps *
                         static_cast<double>(p.groups);
    const double one = 3000.0 + phase.taps_h * phase.taps_w * plan.num_ic_blocks * of_block + n * 40.0;
    sum += count * one, tiles += count;
    longest = one > longest ? one : longest;
  }
  const double multiplying = tiles <= num_sms ? longest : sum / num_sms + 0.5 * longest;
  const double bytes = static_cast<double>(packed_values) * (sixteen_bit ? 4 : 6);
  return multiplying + bytes / (14.0 * num_sms) + 6000.0;  // and packing
}

// Usable where its 32-bit places reach and it is clearly cheaper than `other`, which is returned where it is not.
inline Plan cheaper_gathered(const Plan& other, const ConvCall& call, bool sixteen_bit, int smem_limit, int num_sms) {
  // Measured: pixels packed before by the gradient of the weight are to be had for less than this one's packing.
#ifdef TCONV_READS_PACKED
  constexpr double kClearly = 0.56;
#else
  constexpr double kClearly = 0.72;
#endif
  ConvTransposeLayer p = call.layer;
  int64_t images = p.batch, outputs = p.batch * p.out_channels * p.out_h * p.out_w;
  const int64_t groups = p.groups, channels = p.in_channels;
#ifdef TCONV_WALKS_DEPTH
  const DepthWalk& depth = call.depth;
  const int64_t taps = depth.tap_count();
  if (depth.walks()) {
    // A block of 64 channels is of one tap.
    if (depth.taps == 0 || (taps > 1 && p.in_channels / p.groups / taps % kBlockIC != 0)) return other;
    images = p.batch / depth.slices * depth.in_depth, outputs = p.batch / depth.slices * depth.out_stride_n;
    p.groups *= depth.residues(), p.in_channels *= depth.residues(), p.out_channels *= depth.residues();
  }
#else
  constexpr int64_t taps = 1;
#endif
  Plan plan = plan_geometry(p);
  if (!plan.usable) return other;
  const int64_t chunks = images * p.in_h * p.in_w * groups * (plan.num_ic_blocks / taps) * (kPixelBytes / 16);
  const auto far = [](int64_t places) { return places > GatheredConfig::kMostSide; };
  if (far(p.in_h) || far(p.in_w) || far((p.kernel_h - 1) * p.dilation_h) || far((p.kernel_w - 1) * p.dilation_w) ||
      chunks > INT32_MAX || outputs > INT32_MAX)
    return other;
#ifdef TCONV_WALKS_DEPTH
  while (1 << plan.residue_bits < depth.residues()) ++plan.residue_bits;
  plan.tap_blocks = plan.num_ic_blocks / static_cast<int>(taps);
#endif
  pair_phases(plan, p);
  const int rows = plan.out_channels_per_group * (plan.pair_columns != 0 ? 2 : 1);
  plan.blocks_per_sweep = GatheredConfig::kBlocks;
  plan.num_sweeps = ceil_div(round_up(rows, 16), GatheredConfig::kBlocks * kBlockOC);
  for (int i = 0; i < plan.num_phases; ++i) {
    Phase& phase = plan.phases[i];
    if (far(phase.out_count_h) || far(phase.out_count_w)) return other;
    if (phase.taps_h > 0 &&
        (far(std::abs(plan.row_offset + phase.row_shift)) || far(std::abs(plan.col_offset + phase.col_shift))))
      return other;
    phase.weight_base = plan.sweep_tiles;
    plan.sweep_tiles += phase.taps_h * phase.taps_w * plan.num_ic_blocks;
  }
  plan.num_weight_tiles = static_cast<int64_t>(plan.sweep_tiles) * plan.num_sweeps * plan.num_groups;
  plan.pixel_bytes = chunks * 16;
  for (int n = 128; n <= 256; n += 128) {  // the compiled ones
    const double cost = gathered_cost(plan, p, images * p.in_h * p.in_w * (channels / taps), n, sixteen_bit, num_sms);
    if (GatheredConfig::smem_bytes(n) > smem_limit || (plan.gathered_n > 0 && cost >= plan.cost)) continue;
    plan.gathered_n = n, plan.cost = cost;
  }
  // One that cannot be costs nothing; of several residues, one that may cost more than one after the other.
  const bool taken = plan.gathered_n > 0 && (other.cost == 0 || plan.cost < kClearly * other.cost);
  return taken ? plan : other;
}

}  // namespace hopper
}  // namespace tconv
