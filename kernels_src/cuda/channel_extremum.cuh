// The minimum or maximum over channels of a transposed convolution whose outputs are never written: the Hopper kernel
// leaves one plane for each 64 channels (conv_transpose_hopper_extremum.cuh), which a small kernel joins. fp32 operands
// that fp16 containers cannot hold are computed again behind the guard (channel_extremum_fallback.cuh).
#pragma once

#include "channel_extremum_fallback.cuh"
#include "channel_extremum_join.cuh"
#include "conv_transpose_dispatch.cuh"

namespace tconv {
namespace cuda {

// Of a call that the Hopper kernel would do; other calls are declined.
struct ExtremumPlan {
  int64_t status;
  hopper::Plan hopper;
  int64_t planes;    // of a sample
  int64_t partials;  // where those lie in the workspace, if there are several
  int64_t workspace_bytes;
};

inline ExtremumPlan plan_extremum_anew(const ConvCall& call) {
  ExtremumPlan made{};
  made.status = kUnsupportedKernel;
  const ConvTransposeLayer& p = call.layer;
  if (has_no_outputs(p)) return made;
  const KernelPlan& plan = choose_kernel<Outputs::kAlone>(call);
  if (plan.status != kOk || plan.kernel != kHopper) return made;
#ifdef TCONV_GATHERS_PIXELS
  if (plan.hopper.gathered_n > 0) return made;
#endif
  made.hopper = plan.hopper;
  if (!hopper::reduces_channels(made.hopper.n)) {
    DeviceLimits device;
    if (query_device_limits(&device) != kOk) return made;
    // What that has kernels for has 128 columns.
    made.hopper = hopper::make_plan(p, Outputs::kSeldomWithMoments, call.dtype != kFloat32,
                                    static_cast<int>(device.smem_per_block), device.sm_count);
    if (!made.hopper.usable) return made;
  }
  made.status = kOk;
  made.planes = int64_t{made.hopper.num_groups} * extremum_planes(made.hopper.out_channels_per_group);
  made.partials = norm::ceil_div(hopper::HopperWorkspace(made.hopper).total_bytes, 256) * 256;
  const int64_t bytes = call.dtype == kFloat32 ? 4 : 2;
  made.workspace_bytes = made.partials + (made.planes > 1 ? p.batch * made.planes * p.out_h * p.out_w * bytes : 0);
  return made;
}

inline const ExtremumPlan& plan_extremum(const ConvCall& call) {
  return remembered_plan<ExtremumPlan, plan_extremum_anew>(call);
}

inline int64_t extremum_workspace_bytes(const ConvCall& call) {
  const ExtremumPlan& plan = plan_extremum(call);
  return plan.status == kOk ? plan.workspace_bytes : plan.status;
}

inline int64_t launch_extremum_join(const ConvCall& call, int64_t extremum, const void* partials, int64_t planes) {
  const ConvTransposeLayer& p = call.layer;
  const auto launch = [&](auto storage) {
    return launch_extremum_join<decltype(storage)>(partials, call.out, extremum, p.batch, planes, p.out_h * p.out_w,
                                                   call.stream);
  };
  switch (call.dtype) {
#ifndef TCONV_WITHOUT_FP32
    case kFloat32: return launch(float{});
#endif
#ifndef TCONV_WITHOUT_FP16
    case kFloat16: return launch(__half{});
#endif
#ifndef TCONV_WITHOUT_BF16
    case kBFloat16: return launch(__nv_bfloat16{});
#endif
    default: return kUnsupportedDType;
  }
}

// call.out: [batch][out_h][out_w].
inline int64_t launch_extremum(const ConvCall& call, int64_t extremum) {
  const ExtremumPlan plan = plan_extremum(call);
  if (plan.status != kOk) return plan.status;
  if (call.workspace_bytes < plan.workspace_bytes) return kWorkspaceTooSmall;
  explain(choose_kernel<Outputs::kAlone>(call), call.explanation);
  DeviceLimits device;
  TCONV_RETURN_IF_ERROR(query_device_limits(&device));
  void* const partials = static_cast<char*>(call.workspace) + plan.partials;
  const ConvOutputs outputs{plan.planes > 1 ? partials : call.out, nullptr, extremum};
  TCONV_RETURN_IF_ERROR(hopper::launch<Outputs::kAlone>(plan.hopper, call, outputs, call.workspace, device.sm_count));
  if (plan.planes > 1) TCONV_RETURN_IF_ERROR(launch_extremum_join(call, extremum, partials, plan.planes));
#ifndef TCONV_WITHOUT_FP32
  if (call.dtype == kFloat32)  // 16-bit inputs need no other kernel
    return launch_extremum_fallback(call, static_cast<float*>(call.out), extremum,
                                    &hopper::HopperWorkspace(plan.hopper).guard(call.workspace)->out_of_range,
                                    device.sm_count * ExtremumFallbackConfig::kBlocksPerSm);
#endif
  return kOk;
}

}  // namespace cuda
}  // namespace tconv
