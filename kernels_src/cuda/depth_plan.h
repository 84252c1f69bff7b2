// The Hopper kernel's plan for slices of volumes (depth_walk.h). Where a call's tiles are too few for the processors,
// output channels are cut into parts, each with the input's channels, as if they were groups; and residues in depth of
// one call are groups, too. Plain host C++.
#pragma once

#include "conv_transpose_hopper_plan.h"

namespace tconv {
namespace hopper {

constexpr int kMostSplitBits = 2;

// Of a layer with so many residues, a power of two.
inline Plan plan_parts(const ConvTransposeLayer& p, int residues, bool sixteen_bit, int smem_limit, int num_sms) {
  Plan best{};
  for (int bits = 0; bits <= kMostSplitBits; ++bits) {
    if (bits > 0 && (p.out_channels / p.groups % (kBlockOC << bits) != 0 || best.num_ranges() >= num_sms)) break;
    ConvTransposeLayer cut = p;
    cut.groups = p.groups * residues << bits;
    cut.in_channels = p.in_channels * residues << bits;
    cut.out_channels = p.out_channels * residues;
    Plan plan = make_plan(cut, Outputs::kAlone, sixteen_bit, smem_limit, num_sms);
    plan.split_bits = bits;
    while (1 << plan.residue_bits < residues) ++plan.residue_bits;
    if (bits > 0 && (!plan.usable || plan.cost >= best.cost)) continue;
    best = plan;
    if (!best.usable) break;
  }
  return best;
}

// Several residues in one call are planned where that is clearly cheaper than one after the other.
inline Plan plan_residues(const ConvTransposeLayer& p, int residues, bool sixteen_bit, int smem_limit, int num_sms) {
  constexpr double kClearly = 0.95, kLaunches = 8000;  // cycles that a call's small kernels take
  Plan plan = plan_parts(p, residues, sixteen_bit, smem_limit, num_sms);
  if (residues == 1 || !plan.usable) return plan;
  const Plan one = plan_parts(p, 1, sixteen_bit, smem_limit, num_sms);
  if (one.usable && plan.cost + kLaunches > kClearly * residues * (one.cost + kLaunches)) {
    plan.usable = false;
    plan.reason = "";  // nobody is told: each is asked for by itself then
  }
  return plan;
}

}  // namespace hopper
}  // namespace tconv
