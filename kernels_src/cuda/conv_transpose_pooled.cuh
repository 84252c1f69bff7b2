// The transposed convolution whose output is never written: the Hopper kernel pools 2 x 2 windows in its epilogue.
// fp32 operands that fp16 containers cannot hold are computed again behind the guard (conv_transpose_pooled_wide.cuh).
#pragma once

#include "conv_transpose_dispatch.cuh"
#include "conv_transpose_pooled_wide.cuh"

namespace tconv {
namespace cuda {

struct PooledPlan {
  int64_t status;
  const char* reason;  // why not
  sm90::Plan hopper;
  int64_t num_partials, workspace_bytes;
};

inline PooledPlan no_pooled_plan(int64_t status, const char* reason) {
  PooledPlan plan{};
  plan.status = status;
  plan.reason = reason;
  return plan;
}

inline PooledPlan plan_pooled_anew(const ConvCall& call) {
  const ConvTransposeProblem& p = call.problem;
  if (call.kernel_choice != kAuto && call.kernel_choice != kHopper)
    return no_pooled_plan(kUnsupportedKernel, "another kernel is forced");
  if (has_no_outputs(p) || p.out_h < 2 || p.out_w < 2) return no_pooled_plan(kUnsupportedKernel, "no whole window");
  if (call.kernel_choice == kAuto && !hopper_pays(p)) return no_pooled_plan(kUnsupportedKernel, "too few channels");
  if (wants_one_launch(call)) return no_pooled_plan(kUnsupportedKernel, "few products");
  if (!mma_can_index(p)) return no_pooled_plan(kUnsupportedKernel, "a sample or its strides need 64-bit indices");
  DeviceLimits device;
  const int64_t status = query_device_limits(&device);
  if (status != kOk) return no_pooled_plan(status, "the device cannot be queried");
  PooledPlan plan{};
  plan.hopper = sm90::plan_call(call, sm90::Outputs::kPooled, device);
  if (!plan.hopper.usable) return no_pooled_plan(kUnsupportedKernel, plan.hopper.reason);
  plan.num_partials = plan.hopper.partials_per_sample();
  plan.workspace_bytes = sm90::Sm90Workspace(plan.hopper).total_bytes;
  return plan;
}

// status kOk: the call's outputs can be pooled in the epilogue.
inline const PooledPlan& plan_pooled(const ConvCall& call) { return remembered_plan<PooledPlan, plan_pooled_anew>(call); }

// outputs.out: [batch][out_channels][out_h / 2][out_w / 2], outputs.partials: moments of the unpooled outputs, or null.
// pool_weight: the BatchNorm weight, [out_channels], or null.
inline int64_t launch_pooled(const PooledPlan& plan, const ConvCall& call, const ConvOutputs& outputs, const void* pool_weight,
                             void* workspace) {
  const ConvTransposeProblem& p = call.problem;
  DeviceLimits device;
  TCONV_RETURN_IF_ERROR(query_device_limits(&device));
  TCONV_RETURN_IF_ERROR(
      sm90::launch<sm90::Outputs::kPooled>(plan.hopper, call, outputs, workspace, device.sm_count, pool_weight));
  if (call.dtype != kFloat32) return kOk;
  return launch_pooled_wide(call, static_cast<float*>(outputs.out), static_cast<const float*>(pool_weight), outputs.partials,
                            plan.num_partials, &sm90::Sm90Workspace(plan.hopper).guard(workspace)->out_of_range, device.sm_count);
}

}  // namespace cuda
}  // namespace tconv
