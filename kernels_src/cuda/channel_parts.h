// The Hopper kernel's plan where a call's tiles are too few for the processors, as of small images with many channels:
// output channels are cut into parts, each with the input's channels, as if they were groups. Plain host C++.
#pragma once

#include "conv_transpose_hopper_plan.h"

namespace tconv {
namespace hopper {

constexpr int kMostSplitBits = 2;

// Of a layer of volumes with so many residues in depth in one call, a power of two, which are groups, too
// (depth_plan.h); 1 of any other.
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
#ifdef TCONV_WALKS_DEPTH
    while (1 << plan.residue_bits < residues) ++plan.residue_bits;
#endif
    if (bits > 0 && (!plan.usable || plan.cost >= best.cost)) continue;
    best = plan;
    if (!best.usable) break;
  }
  return best;
}

}  // namespace hopper
}  // namespace tconv
