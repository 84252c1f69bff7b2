// Picks the kernel for a call and launches it: the definitions behind conv_transpose.cuh.
#pragma once

#include "conv_transpose.cuh"
#include "conv_transpose_direct_launch.cuh"
#include "conv_transpose_portable_launch.cuh"
#include "conv_transpose_plain.cuh"
#include "conv_transpose_hopper_launch.cuh"
#include "moments_merge.cuh"
#include "plan_cache.h"

namespace tconv {
namespace cuda {

struct KernelPlan {
  int64_t status;  // kOk, or why the call cannot be done
  KernelChoice kernel;
  const char* reason;
  TileGeometry geometry;  // kPortable
  hopper::Plan hopper;    // kHopper
  DirectPlan direct;      // kDirect
  int64_t workspace_bytes, num_partials;
  // Tensor cores on fp32 with TF32 allowed: the strict kernel behind them, for operands that fp16 containers cannot
  // hold.
  bool has_fallback;
  TileGeometry fallback;
  int64_t fallback_workspace, fallback_partials;  // offsets into the workspace
};

using Fallback = PortableConfig<Numeric::kStrictFP32>;

inline Numeric portable_numeric(const ConvCall& call) {
  if (call.dtype == kFloat16) return Numeric::kFP16;
  if (call.dtype == kBFloat16) return Numeric::kBF16;
  return call.math == kMathStrict ? Numeric::kStrictFP32 : Numeric::kTF32;
}

// Calls f(PortableConfig<...>{}) for the call's numeric mode.
template <typename Function>
auto with_portable_config(const ConvCall& call, Function&& f) {
  switch (portable_numeric(call)) {
    case Numeric::kFP16: return f(PortableConfig<Numeric::kFP16>{});
    case Numeric::kBF16: return f(PortableConfig<Numeric::kBF16>{});
    case Numeric::kStrictFP32: return f(PortableConfig<Numeric::kStrictFP32>{});
    default: return f(PortableConfig<Numeric::kTF32>{});
  }
}

inline bool has_no_outputs(const ConvTransposeLayer& p) {
  return p.batch == 0 || p.out_channels == 0 || p.out_h <= 0 || p.out_w <= 0;
}

inline KernelPlan plain_plan(const ConvCall& call, const char* reason) {
  KernelPlan plan{};
  plan.kernel = kPlain;
  plan.reason = reason;
  plan.num_partials = plain_blocks_per_plane(call.layer);
  return plan;
}

inline KernelPlan failed_plan(int64_t status, const char* reason) {
  KernelPlan plan{};
  plan.status = status;
  plan.reason = reason;
  return plan;
}

// Adds the fallback where the call needs one. False where no tile of it fits the device.
inline bool add_fallback(KernelPlan& plan, const ConvCall& call, const DeviceLimits& device) {
  const ConvTransposeLayer& p = call.layer;
  plan.has_fallback = portable_numeric(call) == Numeric::kTF32;
  if (!plan.has_fallback) return true;
  if (!choose_geometry<Fallback>(p, portable_tiles_elsewhere<Fallback>(p), tile_limits(device), &plan.fallback))
    return false;
  plan.fallback_workspace = round_up(plan.workspace_bytes, 256);
  plan.fallback_partials = round_up(plan.fallback_workspace + PortableWorkspace<Fallback>(p).total_bytes, 256);
  plan.workspace_bytes = plan.fallback_partials + p.batch * portable_num_partials(p, plan.fallback) * p.out_channels *
                                                      static_cast<int64_t>(sizeof(Moments));
  return true;
}

// The direct kernel's plan, or one whose status and reason say why not.
inline KernelPlan direct_plan(const ConvCall& call) {
  if (call.dtype == kFloat64) return failed_plan(kUnsupportedKernel, "fp64 has the plain kernel");
  DeviceLimits device;
  const int64_t status = query_device_limits(&device);
  if (status != kOk) return failed_plan(status, "the device cannot be queried");
  KernelPlan plan{};
  plan.direct = plan_direct(call.layer, fits_32_bit_indices(call.layer), device);
  if (!plan.direct.usable)
    return failed_plan(kUnsupportedKernel, "a stride over 8, weights that do not fit shared memory, or 64-bit indices");
  plan.kernel = kDirect;
  plan.reason = "few channels per group";
  plan.num_partials = plan.direct.num_partials(call.layer);
  return plan;
}

// The portable kernel's plan, or a plain one with the reason why not.
inline KernelPlan portable_plan(const ConvCall& call) {
  const ConvTransposeLayer& p = call.layer;
  if (call.dtype == kFloat64) return plain_plan(call, "fp64 has no tensor-core path");
  if (!fits_32_bit_indices(p)) return plain_plan(call, "a sample or its strides need 64-bit indices");
  DeviceLimits device;
  const int64_t status = query_device_limits(&device);
  if (status != kOk) return failed_plan(status, "the device cannot be queried");
  if (device.compute_major < 8) return plain_plan(call, "the device has no TF32 and bf16 tensor cores");
  return with_portable_config(call, [&](auto config) {
    using Config = decltype(config);
    KernelPlan plan{};
    plan.workspace_bytes = PortableWorkspace<Config>(p).total_bytes;
    if (!choose_geometry<Config>(p, portable_tiles_elsewhere<Config>(p), tile_limits(device), &plan.geometry) ||
        !add_fallback(plan, call, device))
      return plain_plan(call, "no tile fits this device's shared memory");
    plan.kernel = kPortable;
    plan.reason = "tensor cores";
    plan.num_partials = portable_num_partials(p, plan.geometry);
    return plan;
  });
}

// The Hopper kernel's plan, or one whose status and reason say why not.
template <hopper::Outputs kOutputs>
KernelPlan hopper_plan(const ConvCall& call) {
  DeviceLimits device;
  const int64_t status = query_device_limits(&device);
  if (status != kOk) return failed_plan(status, "the device cannot be queried");
  const hopper::Plan hopper = hopper::plan_call(call, kOutputs, device);
  if (!hopper.usable) return failed_plan(kUnsupportedKernel, hopper.reason);
  if (call.dtype == kFloat32 && !fits_32_bit_indices(call.layer))
    return failed_plan(kUnsupportedKernel, "a sample or its strides need 64-bit indices");
  KernelPlan plan{};
  plan.workspace_bytes = hopper::HopperWorkspace(hopper).total_bytes;
  if (!add_fallback(plan, call, device))
    return failed_plan(kUnsupportedKernel, "no tile of the fallback fits this device's shared memory");
  plan.kernel = kHopper;
  plan.reason = "wgmma";
  plan.hopper = hopper;
  plan.num_partials = hopper.partials_per_sample();
  return plan;
}

// The Hopper kernel multiplies 64 output channels by 16 input channels at a time: with few of one of the two it is
// still ahead, with few of both it is behind, and where it would store every third column.
inline bool hopper_pays(const ConvTransposeLayer& p) {
  const int64_t in = p.in_channels / p.groups, out = p.out_channels / p.groups;
  return in >= 4 && (in >= 16 || out >= 16) && p.stride_w <= 2;
}

// Products of an input and a weight, those that padding crops included.
inline double num_products(const ConvTransposeLayer& p) {
  return static_cast<double>(p.batch * p.in_h * p.in_w) * p.in_channels * (p.out_channels / p.groups) * p.kernel_h *
         p.kernel_w;
}

// Whether the rule has one launch answer in fp32, though TF32 is allowed: where PyTorch answers in fp32, too (few
// channels a group), and where the tensor cores' way would take five launches for little.
inline bool wants_one_launch(const ConvCall& call) {
  constexpr int64_t kFewProducts = 1 << 20, kFewGroupChannels = 8;
  const ConvTransposeLayer& p = call.layer;
  if (call.kernel_choice != kAuto || portable_numeric(call) != Numeric::kTF32) return false;
  return (p.groups > 1 && p.in_channels / p.groups <= kFewGroupChannels) || num_products(p) <= kFewProducts;
}

template <Outputs kOutputs>
KernelPlan choose_kernel_anew(const ConvCall& call) {
  const ConvTransposeLayer& p = call.layer;
  if (call.dtype < kFloat32 || call.dtype > kBFloat16) return failed_plan(kUnsupportedDType, "unknown dtype");
  if (has_no_outputs(p)) return plain_plan(call, "nothing to compute");
  switch (call.kernel_choice) {
    case kPlain: return plain_plan(call, "forced");
    case kPortable: {
      const KernelPlan plan = portable_plan(call);
      return plan.status == kOk && plan.kernel != kPortable ? failed_plan(kUnsupportedKernel, plan.reason) : plan;
    }
    case kHopper: return hopper_plan<kOutputs>(call);
    case kDirect: return direct_plan(call);
    case kAuto: break;
    default: return failed_plan(kUnsupportedKernel, "no such kernel in this build");
  }
  // Split operands leave some 2^-21 of each product: of fewer products than these, fp32 units make less of an error.
  constexpr int64_t kLeastStrictProducts = 5;
  if (portable_numeric(call) == Numeric::kStrictFP32 &&
      p.in_channels / p.groups * p.kernel_h * p.kernel_w < kLeastStrictProducts) {
    const KernelPlan plan = direct_plan(call);
    return plan.status == kOk ? plan : plain_plan(call, "few products, in fp32");
  }
  if (wants_one_launch(call)) {
    const KernelPlan plan = direct_plan(call);
    if (plan.status == kOk) return plan;
  }
  // Products on padding are wasted; below this share a few real ones, one by one, are faster.
  constexpr double kMinUsefulFraction = 1.0 / 32;
  const double useful =
      with_portable_config(call, [&](auto config) { return portable_useful_fraction<decltype(config)>(p); });
  if (useful < kMinUsefulFraction) {
    const KernelPlan plan = direct_plan(call);
    return plan.status == kOk ? plan : plain_plan(call, "too few channels per group to fill a tensor-core tile");
  }
  if (hopper_pays(p)) {
    const KernelPlan plan = hopper_plan<kOutputs>(call);
    if (plan.status == kOk) return plan;
  }
  return portable_plan(call);
}

// Which kernel a call gets, why, and what it needs.
template <Outputs kOutputs>
const KernelPlan& choose_kernel(const ConvCall& call) {
  return remembered_plan<KernelPlan, choose_kernel_anew<kOutputs>>(call);
}

template <Outputs kOutputs>
int64_t conv_num_partials(const ConvCall& call) {
  return choose_kernel<kOutputs>(call).num_partials;
}

template <Outputs kOutputs>
int64_t conv_workspace_bytes(const ConvCall& call) {
  return choose_kernel<kOutputs>(call).workspace_bytes;
}

// The strict kernel over the same outputs and moments where the guard is up; else nothing.
inline int64_t launch_fallback(const KernelPlan& plan, const ConvCall& call, const ConvOutputs& outputs,
                               void* workspace, const GuardState* state) {
  if (!plan.has_fallback) return kOk;
  char* const base = static_cast<char*>(workspace);
  const int* guard = &state->out_of_range;
  Moments* partials = outputs.partials == nullptr ? nullptr : reinterpret_cast<Moments*>(base + plan.fallback_partials);
  TCONV_RETURN_IF_ERROR(
      launch_portable<Fallback>(call, plan.fallback, outputs.out, partials, base + plan.fallback_workspace, guard));
  if (partials == nullptr) return kOk;
  return launch_merge_moments(partials, portable_num_partials(call.layer, plan.fallback), outputs.partials,
                              plan.num_partials, call.layer.batch, call.layer.out_channels, guard, call.stream);
}

template <Outputs kOutputs>
int64_t launch_hopper(const KernelPlan& plan, const ConvCall& call, const ConvOutputs& outputs, void* workspace) {
  DeviceLimits device;
  TCONV_RETURN_IF_ERROR(query_device_limits(&device));
  TCONV_RETURN_IF_ERROR(hopper::launch<kOutputs>(plan.hopper, call, outputs, workspace, device.sm_count));
  return launch_fallback(plan, call, outputs, workspace, hopper::HopperWorkspace(plan.hopper).guard(workspace));
}

inline int64_t launch_portable(const KernelPlan& plan, const ConvCall& call, const ConvOutputs& outputs,
                               void* workspace) {
  return with_portable_config(call, [&](auto config) -> int64_t {
    using Config = decltype(config);
    TCONV_RETURN_IF_ERROR(launch_portable<Config>(call, plan.geometry, outputs.out, outputs.partials, workspace));
    return launch_fallback(plan, call, outputs, workspace, PortableWorkspace<Config>(call.layer).guard(workspace));
  });
}

inline int64_t launch_direct(const DirectPlan& plan, const ConvCall& call, const ConvOutputs& outputs) {
  switch (call.dtype) {
    case kFloat32: return launch_direct<float>(plan, call, outputs.out, outputs.partials);
    case kFloat16: return launch_direct<__half>(plan, call, outputs.out, outputs.partials);
    default: return launch_direct<__nv_bfloat16>(plan, call, outputs.out, outputs.partials);
  }
}

template <Outputs kOutputs>
int64_t launch_conv_transpose(const ConvCall& call, const ConvOutputs& outputs, void* workspace) {
  const KernelPlan plan = choose_kernel<kOutputs>(call);
  if (plan.status != kOk) return plan.status;
  if (has_no_outputs(call.layer)) return kOk;
  if (plan.kernel == kHopper) return launch_hopper<kOutputs>(plan, call, outputs, workspace);
  if (plan.kernel == kPortable) return launch_portable(plan, call, outputs, workspace);
  if (plan.kernel == kDirect) return launch_direct(plan.direct, call, outputs);
  switch (call.dtype) {
    case kFloat32: return launch_plain<float>(call, outputs.out, outputs.partials);
    case kFloat64: return launch_plain<double>(call, outputs.out, outputs.partials);
    case kFloat16: return launch_plain<__half>(call, outputs.out, outputs.partials);
    default: return launch_plain<__nv_bfloat16>(call, outputs.out, outputs.partials);
  }
}

}  // namespace cuda
}  // namespace tconv
