// The weight gradient: picks a kernel and launches it.
#pragma once

#include "weight_gradient_plain.cuh"
#include "weight_gradient_portable_launch.cuh"

namespace tconv {
namespace cuda {

struct WeightGradientPlan {
  int64_t status;
  KernelChoice kernel;
  SlidingLayer sliding;
  WeightGradientPlainPlan plain;
  PortableGradientPlan portable, strict;  // strict: of fp32, by itself or behind a kernel whose containers may not hold the operands
  int64_t total_bytes;

  WeightGradientPlan(const GradientCall& call, const DeviceLimits& device)
      : status(kOk), kernel(kPlain), sliding(call.conv.problem), plain(call.conv.problem, device.sm_count), portable{}, strict{} {
    const int64_t choice = call.conv.kernel_choice;
    if (choice != kPlain && choice != kDirect) choose_tensor_cores(call, device);
    if (kernel == kPlain && (choice == kPortable || choice == kHopper)) status = kUnsupportedKernel;
    total_bytes = kernel == kPlain ? plain.num_parts * plain.count * (call.conv.dtype == kFloat64 ? 8 : 4)
                                   : std::max(portable.total_bytes, strict.total_bytes);
  }

 private:
  void choose_tensor_cores(const GradientCall& call, const DeviceLimits& device) {
    const ConvTransposeProblem& p = call.conv.problem;
    if (call.conv.dtype == kFloat64 || device.compute_major < 8 || p.batch == 0 || !weight_gradient_can_index(p, sliding)) return;
    // Products on padding are wasted; below this share a few real ones, one by one, are faster.
    constexpr double kMinUsefulFraction = 1.0 / 32;
    const WeightGradientLayout layout = weight_gradient_layout(p, sliding, 1);
    const double useful = static_cast<double>(layout.x.channels_per_group) * layout.planes.channels_per_group /
                          (static_cast<double>(layout.x.blocks) * layout.planes.blocks * WeightGradientConfig::kTileValues);
    if (useful < kMinUsefulFraction && call.conv.kernel_choice == kAuto) return;
    const bool fp32 = call.conv.dtype == kFloat32;
    if (fp32) {
      strict = portable_gradient_plan(p, sliding, 3, device);
      if (!strict.usable) return;
    }
    if (!fp32 || call.conv.math == kMathTF32) {
      portable = portable_gradient_plan(p, sliding, 1, device);
      if (!portable.usable) return;
    }
    kernel = kPortable;
  }
};

template <typename Storage>
int64_t launch_weight_gradient(const GradientCall& call, const WeightGradientPlan& plan, void* workspace) {
  if (plan.kernel == kPlain) return launch_weight_gradient_plain<Storage>(call, plan.plain, workspace);
  if constexpr (sizeof(Storage) == 8) {
    return kUnsupportedKernel;
  } else if constexpr (sizeof(Storage) == 2) {
    constexpr bool kBFloat16 = std::is_same_v<Storage, __nv_bfloat16>;
    return launch_weight_gradient_portable<1, kBFloat16, Storage>(call, plan.sliding, plan.portable, workspace, nullptr, nullptr);
  } else {
    const int* only_if = nullptr;
    if (call.conv.math == kMathTF32) {
      GradientState* const state = plan.portable.goes.state(workspace);
      TCONV_RETURN_IF_ERROR(launch_scales(call, state));
      TCONV_RETURN_IF_ERROR(
          (launch_weight_gradient_portable<1, false, Storage>(call, plan.sliding, plan.portable, workspace, state, nullptr)));
      only_if = &state->guard.out_of_range;
    }
    return launch_weight_gradient_portable<3, true, Storage>(call, plan.sliding, plan.strict, workspace, nullptr, only_if);
  }
}

}  // namespace cuda
}  // namespace tconv
