// The transposed convolution whose output is never written: the Hopper kernel pools 2 x 2 windows in its epilogue.
// fp32 operands that fp16 containers cannot hold are computed again behind the guard
// (conv_transpose_pooled_fallback.cuh).
#pragma once

#include "conv_transpose_dispatch.cuh"
#include "conv_transpose_pooled_fallback.cuh"

namespace tconv {
namespace cuda {

struct PooledPlan {
  int64_t status;
  const char* reason;  // why not, in words
  hopper::Plan hopper;
  int64_t num_partials, workspace_bytes;
};

inline PooledPlan no_pooled_plan(int64_t status, const char* reason) {
  PooledPlan plan{};
  plan.status = status;
  plan.reason = reason;
  return plan;
}

inline PooledPlan plan_pooled_anew(const ConvCall& call) {
  const ConvTransposeLayer& p = call.layer;
  if (call.kernel_choice != kAuto && call.kernel_choice != kHopper)
    return no_pooled_plan(kUnsupportedKernel, reason::kForced);
  if (has_no_outputs(p) || p.out_h < 2 || p.out_w < 2)
    return no_pooled_plan(kUnsupportedKernel, reason::kNoWholeWindow);
  DeviceLimits device;
  const int64_t status = query_device_limits(&device);
  if (status != kOk) return no_pooled_plan(status, nullptr);
  const char* why = hopper::cannot_run(call, device);
  if (why == nullptr && call.kernel_choice == kAuto) why = hopper_is_slower(p);
  if (why == nullptr) why = wants_one_launch(call);
  if (why == nullptr && !fits_32_bit_indices(p)) why = reason::kLongIndices;
  if (why != nullptr) return no_pooled_plan(kUnsupportedKernel, why);
  PooledPlan plan{};
  plan.hopper = hopper::plan_call(call, hopper::Outputs::kPooled, device);
  if (!plan.hopper.usable) return no_pooled_plan(kUnsupportedKernel, plan.hopper.reason);
  plan.num_partials = plan.hopper.partials_per_sample();
  plan.workspace_bytes = hopper::HopperWorkspace(plan.hopper).total_bytes;
  return plan;
}

// status kOk: the call's outputs can be pooled in the epilogue.
inline const PooledPlan& plan_pooled(const ConvCall& call) {
  return remembered_plan<PooledPlan, plan_pooled_anew>(call);
}

// outputs.out: [batch][out_channels][out_h / 2][out_w / 2], outputs.partials: moments of the unpooled outputs, or null.
// pool_weight: the BatchNorm weight, [out_channels], or null.
inline int64_t launch_pooled(const PooledPlan& plan, const ConvCall& call, const ConvOutputs& outputs,
                             const void* pool_weight, void* workspace) {
  DeviceLimits device;
  TCONV_RETURN_IF_ERROR(query_device_limits(&device));
  TCONV_RETURN_IF_ERROR(
      hopper::launch<hopper::Outputs::kPooled>(plan.hopper, call, outputs, workspace, device.sm_count, pool_weight));
#ifdef TCONV_WITHOUT_FP32
  return kOk;  // 16-bit inputs need no other kernel
#else
  if (call.dtype != kFloat32) return kOk;
  return launch_pooled_fallback(call, static_cast<float*>(outputs.out), static_cast<const float*>(pool_weight),
                                outputs.partials, plan.num_partials,
                                &hopper::HopperWorkspace(plan.hopper).guard(workspace)->out_of_range, device.sm_count);
#endif
}

}  // namespace cuda
}  // namespace tconv
