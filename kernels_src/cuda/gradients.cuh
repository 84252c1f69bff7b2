// The one door to the gradients on CUDA: picks kernels and launches them, one gradient after the other in one
// workspace.
#pragma once

#include "bias_gradient.cuh"
#include "input_gradient.cuh"
#include "recomputed_conv.cuh"
#include "weight_gradient.cuh"

namespace tconv {
namespace cuda {

// The kernels read each gradient's part of the workspace only while they run: all have the same place.
inline int64_t gradients_workspace_bytes(const GradientCall& call) {
  const ConvTransposeLayer& p = call.conv.layer;
  if (call.conv.dtype < kFloat32 || call.conv.dtype > kBFloat16) return kUnsupportedDType;
  if (call.conv.out != nullptr) return conv_workspace_bytes<Outputs::kAlone>(call.conv);
  DeviceLimits device;
  if (query_device_limits(&device) != kOk) return 0;  // the launch will say why
  const int64_t acc_bytes = call.conv.dtype == kFloat64 ? 8 : 4;
  int64_t most = 0;
  const auto raise = [&most](int64_t bytes) { most = bytes > most ? bytes : most; };
  if (call.grad_x != nullptr && p.batch > 0) {
    const InputGradientPlan plan(call);
    if (plan.status < 0) return plan.status;
    raise(plan.total_bytes);
  }
  if (call.grad_weight != nullptr) {
    const WeightGradientPlan plan(call, device);
    if (plan.status < 0) return plan.status;
    raise(plan.total_bytes);
  }
  if (call.grad_bias != nullptr) raise(BiasGradientPlan(call, device.sm_count).num_parts * p.out_channels * acc_bytes);
  return most;
}

template <typename Storage>
int64_t launch_gradients(const GradientCall& call) {
  if (call.conv.out != nullptr) return launch_recomputed_conv(call.conv);
  const ConvTransposeLayer& p = call.conv.layer;
  DeviceLimits device;
  TCONV_RETURN_IF_ERROR(query_device_limits(&device));
  if (call.grad_x != nullptr && p.batch > 0) {
    const InputGradientPlan plan(call);
    TCONV_RETURN_IF_ERROR(plan.status);
    TCONV_RETURN_IF_ERROR(launch_input_gradient<Storage>(call, plan, call.conv.workspace));
  }
  if (call.grad_weight != nullptr) {
    const WeightGradientPlan plan(call, device);
    TCONV_RETURN_IF_ERROR(plan.status);
    TCONV_RETURN_IF_ERROR(launch_weight_gradient<Storage>(call, plan, call.conv.workspace));
  }
  if (call.grad_bias != nullptr)
    TCONV_RETURN_IF_ERROR(
        launch_bias_gradient<Storage>(call, BiasGradientPlan(call, device.sm_count), call.conv.workspace));
  return kOk;
}

}  // namespace cuda
}  // namespace tconv
