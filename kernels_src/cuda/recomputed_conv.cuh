// The convolution's output by itself, for backward, which computes it once more, or for a forward that keeps it: by the
// forward's kernels, but for the input's scale, which is found on the device, as all scales of the gradients' library
// are.
#pragma once

#include "conv_transpose.cuh"
#include "conv_transpose_dispatch.cuh"
#include "gradient_scales.cuh"
#ifdef TCONV_WALKS_DEPTH
#include "depth_scales.cuh"
#endif

namespace tconv {
namespace cuda {

// Where the Hopper kernel has its guard, and what input scales follow from, in its workspace; -1 where it has none.
inline int64_t hopper_guard_offset(const KernelPlan& plan, int64_t dtype) {
  if (plan.kernel != kHopper || dtype != kFloat32) return -1;
  return reinterpret_cast<char*>(hopper::HopperWorkspace(plan.hopper).guard(nullptr)) - static_cast<char*>(nullptr);
}

#include "input_scale.cuh"

inline int64_t launch_recomputed_conv(const ConvCall& call) {
  const KernelPlan& plan = choose_kernel<Outputs::kAlone>(call);
  if (plan.status != kOk) return plan.status;
  const ConvTransposeLayer& p = call.layer;
  const int64_t guard = hopper_guard_offset(plan, call.dtype);
#ifdef TCONV_WALKS_DEPTH
  if (guard >= 0 && call.depth.walks()) {
    TCONV_RETURN_IF_ERROR(launch_input_scale(
        sampled_input(call), reinterpret_cast<GuardState*>(static_cast<char*>(call.workspace) + guard), call.stream));
    return launch_conv_transpose<Outputs::kAlone>(call, {call.out, nullptr}, call.workspace);
  }
#endif
  if (guard >= 0)
    TCONV_RETURN_IF_ERROR(launch_input_scale(sampled_tensor(call.x, p.batch, p.in_channels, p.in_h, p.in_w,
                                                            p.x_stride_n, p.x_stride_c, p.x_stride_h, p.x_stride_w),
                                             reinterpret_cast<GuardState*>(static_cast<char*>(call.workspace) + guard),
                                             call.stream));
  return launch_conv_transpose<Outputs::kAlone>(call, {call.out, nullptr}, call.workspace);
}

}  // namespace cuda
}  // namespace tconv
