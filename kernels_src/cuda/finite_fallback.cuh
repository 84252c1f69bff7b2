// What stands behind a 16-bit call whose inputs are watched (finite_inputs.cuh): the portable kernel, over all outputs,
// where the guard is up. Slices of volumes have the kernel of depth_launch.cuh.
#pragma once

#include "conv_transpose_dispatch.cuh"

namespace tconv {
namespace cuda {

// `plan` with the Hopper kernel and what is behind it, or why that cannot be.
inline KernelPlan with_finite_fallback(KernelPlan plan, const hopper::Plan& hopper, const ConvCall& call,
                                       const DeviceLimits& device) {
  const ConvTransposeLayer& p = call.layer;
  plan.fallback_workspace = round_up(plan.workspace_bytes, 256);
  return with_portable_config(call, [&](auto config) {
    using Config = decltype(config);
    if (!choose_geometry<Config>(p, portable_tiles_elsewhere<Config>(p), tile_limits(device), &plan.fallback))
      return failed_plan(kUnsupportedKernel, reason::kNoPortableTile);
    plan.workspace_bytes = plan.fallback_workspace + PortableWorkspace<Config>(p).total_bytes;
    plan.kernel = kHopper;
    plan.hopper = hopper;
    return plan;
  });
}

inline int64_t launch_finite_fallback(const KernelPlan& plan, const ConvCall& call, const ConvOutputs& outputs,
                                      void* workspace) {
  const int* const guard = &hopper::HopperWorkspace(plan.hopper).guard(workspace)->out_of_range;
  void* const own = static_cast<char*>(workspace) + plan.fallback_workspace;
  return with_portable_config(call, [&](auto config) -> int64_t {
    return launch_portable<decltype(config)>(call, plan.fallback, outputs.out, nullptr, own, guard);
  });
}

}  // namespace cuda
}  // namespace tconv
