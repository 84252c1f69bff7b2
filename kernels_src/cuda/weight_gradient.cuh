// The weight gradient: picks a kernel and launches it.
#pragma once

#include "conv_transpose_dispatch.cuh"
#include "weight_gradient_hopper_launch.cuh"
#ifdef TCONV_READS_PACKED
#ifndef TCONV_WALKS_DEPTH
#include "weight_gradient_one_tap_launch.cuh"
#endif
#endif
#include "weight_gradient_plain.cuh"
#include "weight_gradient_portable_launch.cuh"
#include "weight_gradient_repair.cuh"

namespace tconv {
namespace cuda {

struct WeightGradientPlan {
  int64_t status;
  KernelChoice kernel;
  SlidingLayer sliding;
  WeightGradientPlainPlan plain;
  pixels::HopperGradientPlan hopper;
#ifdef TCONV_READS_PACKED
#ifndef TCONV_WALKS_DEPTH
  pixels::OneTapPlan one_tap;  // in place of the Hopper kernel
#endif
#endif
  PortableGradientPlan portable;
  PortableGradientPlan strict;  // of fp32, by itself or behind a kernel whose containers may not hold the operands
  int64_t total_bytes;

#ifdef TCONV_WALKS_DEPTH
  // may_narrow: planes serve nothing else.
  WeightGradientPlan(const GradientCall& call, const DeviceLimits& device, bool may_narrow = false)
#else
  WeightGradientPlan(const GradientCall& call, const DeviceLimits& device)
#endif
      : status(kOk),
        kernel(kPlain),
#ifdef TCONV_WALKS_DEPTH
        sliding(call.conv.layer, call.depth),
#else
        sliding(call.conv.layer),
#endif
        plain(call.conv.layer, device.sm_count),
        hopper{},
        portable{},
        strict{} {
    const int64_t choice = call.conv.kernel_choice;
#ifdef TCONV_WALKS_DEPTH
    if (choice != kPlain && choice != kDirect) choose_tensor_cores(call, device, may_narrow);
#else
    if (choice != kPlain && choice != kDirect) choose_tensor_cores(call, device);
#endif
    if ((choice == kPortable || choice == kHopper) && kernel != choice) status = kUnsupportedKernel;
#ifdef TCONV_WALKS_DEPTH
    if (call.conv.depth.walks() && kernel == kPlain) status = kUnsupportedKernel;  // its sums lie side by side
#endif
#ifdef TCONV_READS_PACKED
#ifndef TCONV_WALKS_DEPTH
    if (kernel == kHopper) one_tap = pixels::OneTapPlan(call, sliding, hopper.goes, device);
    hopper.total_bytes = std::max(hopper.total_bytes, one_tap.total_bytes);
#endif
#endif
    total_bytes = kernel == kPlain ? plain.num_parts * plain.count * (call.conv.dtype == kFloat64 ? 8 : 4)
                                   : std::max({hopper.total_bytes, portable.total_bytes, strict.total_bytes});
  }

  // Of the kernel that multiplies 16-bit operands.
  const PackedGoes& goes() const { return kernel == kHopper ? hopper.goes : portable.goes; }

 private:
  // Leaves kPlain where no tensor-core kernel can, or should, do the call.
#ifdef TCONV_WALKS_DEPTH
  void choose_tensor_cores(const GradientCall& call, const DeviceLimits& device, bool may_narrow) {
#else
  void choose_tensor_cores(const GradientCall& call, const DeviceLimits& device) {
#endif
    const ConvTransposeLayer& p = call.conv.layer;
    const int64_t choice = call.conv.kernel_choice;
    if (call.conv.dtype == kFloat64 || device.compute_major < 8 || p.batch == 0 ||
        !weight_gradient_can_index(p, sliding) || (choice == kAuto && num_products(p) <= kFewProducts))
      return;
    // Products on padding are wasted; below this share a few real ones, one by one, are faster.
    constexpr double kMinUsefulFraction = 1.0 / 32;
    const WeightGradientLayout layout = weight_gradient_layout(p, sliding, 1);
    const double useful =
        static_cast<double>(layout.x.channels_per_group) * layout.planes.channels_per_group /
        (static_cast<double>(layout.x.blocks) * layout.planes.blocks * WeightGradientConfig::kTileValues);
    if (useful < kMinUsefulFraction && choice != kPortable && choice != kHopper) return;
    const bool fp32 = call.conv.dtype == kFloat32, tf32 = fp32 && call.conv.math == kMathTF32;
#ifdef TCONV_WALKS_DEPTH
    if (fp32 && call.depth.in == 0) {  // or volume_gradients.cuh has it
#else
    if (fp32) {
#endif
      strict = portable_gradient_plan(p, sliding, 3, device, tf32);  // behind another kernel in place
      if (!strict.usable) return;
    }
    if ((!fp32 || tf32) && choice != kPortable) {
#ifdef TCONV_WALKS_DEPTH
      hopper = pixels::hopper_gradient_plan(p, sliding, device, may_narrow);
#else
      hopper = pixels::hopper_gradient_plan(p, sliding, device);
#endif
      if (hopper.usable) {
        kernel = kHopper;
        return;
      }
    }
    if (!fp32 || tf32) {
      portable = portable_gradient_plan(p, sliding, 1, device);
      if (!portable.usable) return;
    }
    kernel = kPortable;
  }
};

// Of packed pixels, which the Hopper kernel's are, and that serve nothing else.
struct NothingElse {
  int64_t operator()(int64_t, int) const { return kOk; }
};

// Operands in 16 bits, with `state` scaled containers.
template <bool kBFloat16, typename Storage, typename AfterGo>
int64_t launch_weight_gradient_16_bit(const GradientCall& call, const WeightGradientPlan& plan, void* workspace,
                                      GradientState* state, const AfterGo& after_go) {
#ifdef TCONV_READS_PACKED
#ifndef TCONV_WALKS_DEPTH
  if constexpr (sizeof(Storage) == 4)
    if (plan.one_tap.serves(call))
      return pixels::launch_weight_gradient_one_tap(call, plan.sliding, plan.goes(), plan.one_tap, workspace, state,
                                                    !std::is_same_v<AfterGo, NothingElse>, after_go);
#endif
#endif
  if (plan.kernel == kHopper)
    return pixels::launch_weight_gradient_hopper<kBFloat16, Storage>(call, plan.sliding, plan.hopper, workspace, state,
                                                                     after_go);
  return launch_weight_gradient_portable<1, kBFloat16, false, Storage>(call, plan.sliding, plan.portable, workspace,
                                                                       state, nullptr);
}

template <typename Storage, typename AfterGo>
int64_t launch_weight_gradient_tensor_cores(const GradientCall& call, const WeightGradientPlan& plan, void* workspace,
                                            const AfterGo& after_go) {
  if constexpr (sizeof(Storage) == 2) {
#ifdef TCONV_GRADIENT_CHAINS
    if (call.packer != nullptr) {
      TCONV_RETURN_IF_ERROR((launch_weight_gradient_16_bit<std::is_same_v<Storage, __nv_bfloat16>, Storage>(
          call, plan, workspace, nullptr, after_go)));
      return call.packer->materialise(nullptr);
    }
#endif
    return launch_weight_gradient_16_bit<std::is_same_v<Storage, __nv_bfloat16>, Storage>(call, plan, workspace,
                                                                                          nullptr, after_go);
  } else {
    if (call.conv.math == kMathStrict)
      return launch_weight_gradient_portable<3, true, false, Storage>(call, plan.sliding, plan.strict, workspace,
                                                                      nullptr, nullptr);
    GradientState* const state = plan.goes().state(workspace);
    TCONV_RETURN_IF_ERROR(launch_scales(call, state));
    TCONV_RETURN_IF_ERROR((launch_weight_gradient_16_bit<false, Storage>(call, plan, workspace, state, after_go)));
#ifdef TCONV_GRADIENT_CHAINS
    if (call.packer != nullptr) TCONV_RETURN_IF_ERROR(call.packer->materialise(&state->guard.out_of_range));
#endif
    return launch_weight_gradient_portable<3, true, true, Storage>(call, plan.sliding, plan.strict, workspace, nullptr,
                                                                   &state->guard.out_of_range);
  }
}

// after_go: of the Hopper kernel alone.
template <typename Storage, typename AfterGo = NothingElse>
int64_t launch_weight_gradient(const GradientCall& call, const WeightGradientPlan& plan, void* workspace,
                               const AfterGo& after_go = {}) {
  if (plan.kernel == kPlain) return launch_weight_gradient_plain<Storage>(call, plan.plain, workspace);
  if constexpr (sizeof(Storage) == 8) {
    return kUnsupportedKernel;  // fp64 has the plain kernel alone
  } else {
    TCONV_RETURN_IF_ERROR(launch_weight_gradient_tensor_cores<Storage>(call, plan, workspace, after_go));
    return launch_weight_gradient_repair<Storage>(call, plan.plain);
  }
}

}  // namespace cuda
}  // namespace tconv
