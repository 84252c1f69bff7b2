// The Hopper kernel's plan for slices of volumes (depth_walk.h): residues in depth of one call are groups. Plain host
// C++.
#pragma once

#include "channel_parts.h"

namespace tconv {
namespace hopper {

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
