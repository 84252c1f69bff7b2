// Picks the kernel for a call and launches it: the definitions behind conv_transpose.cuh.
#pragma once

#include "conv_transpose.cuh"
#include "conv_transpose_direct_launch.cuh"
#include "conv_transpose_portable_launch.cuh"
#include "conv_transpose_plain.cuh"
#include "conv_transpose_hopper_launch.cuh"
#ifdef TCONV_WALKS_DEPTH
#include "depth_launch.cuh"
#endif
#include "moments_merge.cuh"
#include "plan_cache.h"

namespace tconv {
namespace cuda {

// Why kernels that are faster where they run do not: null of those that do, and of slower ones.
struct WhyNot {
  const char *hopper, *portable, *direct;
};

struct KernelPlan {
  int64_t status;      // kOk, or why the call cannot be done
  const char* reason;  // the same in words, where there are
  KernelChoice kernel;
  WhyNot why_not;
  TileGeometry geometry;  // kPortable
  hopper::Plan hopper;    // kHopper
  DirectPlan direct;      // kDirect
  int64_t workspace_bytes, num_partials;
  // Tensor cores on fp32, TF32 allowed: the strict kernel behind them, for operands that no fp16 container can hold.
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

inline KernelPlan plain_plan(const ConvCall& call) {
  KernelPlan plan{};
  plan.kernel = kPlain;
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
  if (call.dtype == kFloat64) return failed_plan(kUnsupportedKernel, reason::kFP64);
  DeviceLimits device;
  const int64_t status = query_device_limits(&device);
  if (status != kOk) return failed_plan(status, nullptr);
  KernelPlan plan{};
#ifdef TCONV_INTERLEAVES
  plan.kernel = kDirect;
  plan.direct.interleaved = plan_interleaved(call, fits_32_bit_indices(call.layer), device);
  if (plan.direct.interleaved.usable) return plan;
#endif
  plan.direct = plan_direct(call.layer, fits_32_bit_indices(call.layer), device);
  if (!plan.direct.usable) return failed_plan(kUnsupportedKernel, plan.direct.reason);
  plan.kernel = kDirect;
  plan.num_partials = plan.direct.num_partials(call.layer);
  return plan;
}

// The portable kernel's plan, or one whose status and reason say why not.
inline KernelPlan portable_plan(const ConvCall& call) {
  const ConvTransposeLayer& p = call.layer;
  if (call.dtype == kFloat64) return failed_plan(kUnsupportedKernel, reason::kFP64);
  if (!fits_32_bit_indices(p)) return failed_plan(kUnsupportedKernel, reason::kLongIndices);
  DeviceLimits device;
  const int64_t status = query_device_limits(&device);
  if (status != kOk) return failed_plan(status, nullptr);
  if (device.compute_major < 8) return failed_plan(kUnsupportedKernel, reason::kNoTensorCores);
  return with_portable_config(call, [&](auto config) {
    using Config = decltype(config);
    KernelPlan plan{};
    plan.workspace_bytes = PortableWorkspace<Config>(p).total_bytes;
    if (!choose_geometry<Config>(p, portable_tiles_elsewhere<Config>(p), tile_limits(device), &plan.geometry) ||
        !add_fallback(plan, call, device))
      return failed_plan(kUnsupportedKernel, reason::kNoPortableTile);
    plan.kernel = kPortable;
    plan.num_partials = portable_num_partials(p, plan.geometry);
    return plan;
  });
}

#ifdef TCONV_WALKS_DEPTH  // depth_dispatch.cuh
template <Outputs kOutputs>
KernelPlan depth_plan(const ConvCall& call);
int64_t launch_behind_slices(const KernelPlan&, const ConvCall&, const ConvOutputs&, void* workspace);

#endif
#ifdef TCONV_MULTIPLIES_ZEROS  // finite_fallback.cuh
KernelPlan with_finite_fallback(KernelPlan, const hopper::Plan&, const ConvCall&, const DeviceLimits&);
int64_t launch_finite_fallback(const KernelPlan&, const ConvCall&, const ConvOutputs&, void* workspace);

#endif
// The Hopper kernel's plan, or one whose status and reason say why not.
template <hopper::Outputs kOutputs>
KernelPlan hopper_plan(const ConvCall& call) {
  DeviceLimits device;
  const int64_t status = query_device_limits(&device);
  if (status != kOk) return failed_plan(status, nullptr);
  const hopper::Plan hopper = hopper::plan_call(call, kOutputs, device);
  if (!hopper.usable) return failed_plan(kUnsupportedKernel, hopper.reason);
#ifdef TCONV_WALKS_DEPTH
  if (call.depth.walks()) {  // the kernel behind it needs no plan
    KernelPlan plan{};
    plan.kernel = kHopper;
    plan.hopper = hopper;
    plan.workspace_bytes = hopper::HopperWorkspace(hopper).total_bytes;
    return plan;
  }
#endif
  if (call.dtype == kFloat32 && !fits_32_bit_indices(call.layer))
    return failed_plan(kUnsupportedKernel, reason::kLongIndices);
  KernelPlan plan{};
  plan.workspace_bytes = hopper::HopperWorkspace(hopper).total_bytes;
#ifdef TCONV_MULTIPLIES_ZEROS
  if (hopper::watches_inputs(hopper, call)) return with_finite_fallback(plan, hopper, call, device);
#endif
  if (!add_fallback(plan, call, device)) return failed_plan(kUnsupportedKernel, reason::kNoPortableTile);
  plan.kernel = kHopper;
  plan.hopper = hopper;
  plan.num_partials = hopper.partials_per_sample();
  return plan;
}

// Why the Hopper kernel does not pay, or null. It multiplies 64 output channels by 16 input channels at a time: with
// few of one of the two it is still ahead, with few of both it is behind, and where it would store every third column.
inline const char* hopper_is_slower(const ConvTransposeLayer& p) {
  const int64_t in = p.in_channels / p.groups, out = p.out_channels / p.groups;
  if (in < 4) return reason::kFewInputChannels;
  if (in < 16 && out < 16) return reason::kFewChannels;
#ifdef TCONV_JOINS_COLUMNS
  if (joins_columns(p)) return joined_is_slower(p);
#endif
  return p.stride_w > 2 ? reason::kColumnsApart : nullptr;
}

// Products of an input and a weight, those that padding crops included.
inline double num_products(const ConvTransposeLayer& p) {
  return static_cast<double>(p.batch * p.in_h * p.in_w) * p.in_channels * (p.out_channels / p.groups) * p.kernel_h *
         p.kernel_w;
}

// Up to so many the tensor cores' way takes longer to launch than one thread a result takes to compute.
constexpr int64_t kFewProducts = 1 << 20;

// Why the rule has one launch answer in fp32, though TF32 is allowed, or null: PyTorch answers in fp32, too (few
// channels a group), or the tensor cores' way would take five launches for little.
inline const char* wants_one_launch(const ConvCall& call) {
  constexpr int64_t kFewGroupChannels = 8;
  const ConvTransposeLayer& p = call.layer;
  if (call.kernel_choice != kAuto || portable_numeric(call) != Numeric::kTF32) return nullptr;
#ifdef TCONV_WALKS_DEPTH
  if (p.groups > 1 && p.in_channels / p.groups / call.depth.tap_count() <= kFewGroupChannels)
    return reason::kFewGroupChannels;
#else
  if (p.groups > 1 && p.in_channels / p.groups <= kFewGroupChannels) return reason::kFewGroupChannels;
#endif
  return num_products(p) <= kFewProducts ? reason::kFewProducts : nullptr;
}

// Why the rule takes no kernel of the tensor cores, or null.
inline const char* few_products(const ConvCall& call) {
  const ConvTransposeLayer& p = call.layer;
  // Split operands leave some 2^-21 of each product: of fewer products than these, fp32 units make less of an error.
  constexpr int64_t kLeastStrictProducts = 5;
  if (portable_numeric(call) == Numeric::kStrictFP32 &&
      p.in_channels / p.groups * p.kernel_h * p.kernel_w < kLeastStrictProducts)
    return reason::kFewStrictProducts;
  // Products on padding are wasted; below this share a few real ones, one by one, are faster.
  constexpr double kMinUsefulFraction = 1.0 / 32;
  const double useful =
      with_portable_config(call, [&](auto config) { return portable_useful_fraction<decltype(config)>(p); });
  return useful < kMinUsefulFraction ? reason::kMostlyPadding : nullptr;
}

// The plan without its why_not: of the forced kernel, or why it cannot be.
template <Outputs kOutputs>
KernelPlan forced_plan(const ConvCall& call) {
  switch (call.kernel_choice) {
    case kPlain: return plain_plan(call);
    case kPortable: return portable_plan(call);
    case kHopper: return hopper_plan<kOutputs>(call);
    case kDirect: return direct_plan(call);
    default: return failed_plan(kUnsupportedKernel, reason::kNoSuchKernel);
  }
}

// Why the Hopper kernel can run no layer with this call's device and numbers, or null.
inline const char* hopper_never_runs(const ConvCall& call) {
  DeviceLimits device;
  return query_device_limits(&device) == kOk ? hopper::cannot_run(call, device) : nullptr;
}

// The plan of the kernel that the rule takes.
template <Outputs kOutputs>
KernelPlan plan_by_rule(const ConvCall& call) {
  const char* const never = hopper_never_runs(call);
  const auto with_reasons = [&](KernelPlan plan, const char* hopper, const char* portable, const char* direct) {
    plan.why_not = {never != nullptr ? never : hopper, portable, direct};
    return plan;
  };
  const char* const one_launch = wants_one_launch(call);
  if (one_launch != nullptr) {
    const KernelPlan plan = direct_plan(call);
    if (plan.status == kOk) return with_reasons(plan, one_launch, one_launch, nullptr);
  }
  const char* const few = call.dtype == kFloat64 ? reason::kFP64 : few_products(call);
  if (few != nullptr) {
    const KernelPlan plan = direct_plan(call);
    if (plan.status == kOk) return with_reasons(plan, few, few, nullptr);
    return with_reasons(plain_plan(call), few, few, plan.reason);
  }
  const char* no_hopper = hopper_is_slower(call.layer);
  if (no_hopper == nullptr) {
    const KernelPlan plan = hopper_plan<kOutputs>(call);
    if (plan.status == kOk) return plan;
    no_hopper = plan.reason;
  }
#ifdef TCONV_INTERLEAVES
  if (const char* const stores = stores_take_longest(call.layer)) {
    KernelPlan plan = direct_plan(call);
    plan.direct.interleaved.rounds = portable_numeric(call) == Numeric::kTF32;
    if (plan.direct.interleaved.usable) return with_reasons(plan, no_hopper, stores, nullptr);
  }
#endif
  const KernelPlan plan = portable_plan(call);
  if (plan.status != kUnsupportedKernel) return with_reasons(plan, no_hopper, nullptr, nullptr);
  return with_reasons(plain_plan(call), no_hopper, plan.reason, reason::kForFewChannels);
}

template <Outputs kOutputs>
KernelPlan choose_kernel_anew(const ConvCall& call) {
  if (call.dtype < kFloat32 || call.dtype > kBFloat16) return failed_plan(kUnsupportedDType, nullptr);
  if (has_no_outputs(call.layer)) return plain_plan(call);
#ifdef TCONV_WALKS_DEPTH
  if (call.depth.walks()) return depth_plan<kOutputs>(call);
#endif
  if (call.kernel_choice == kAuto) return plan_by_rule<kOutputs>(call);
  KernelPlan plan = forced_plan<kOutputs>(call);
  if (plan.kernel != kHopper) plan.why_not.hopper = reason::kForced;
  if (plan.kernel == kDirect || plan.kernel == kPlain) plan.why_not.portable = reason::kForced;
  if (plan.kernel == kPlain) plan.why_not.direct = reason::kForced;
  return plan;
}

// Which kernel a call gets, why, and what it needs.
template <Outputs kOutputs>
const KernelPlan& choose_kernel(const ConvCall& call) {
  return remembered_plan<KernelPlan, choose_kernel_anew<kOutputs>>(call);
}

// What a plan says of itself. `to`: null, or where.
inline void explain(const KernelPlan& plan, Explanation* to) {
  if (to == nullptr) return;
  if (plan.status != kOk) return to->fail(plan.reason);
  switch (plan.kernel) {
    case kHopper: to->kernel = "hopper"; break;
    case kPortable: to->kernel = "portable"; break;
    case kDirect: to->kernel = "direct"; break;
    default: to->kernel = "plain";
  }
  to->rule_out("hopper", plan.why_not.hopper);
  to->rule_out("portable", plan.why_not.portable);
  to->rule_out("direct", plan.why_not.direct);
}

template <Outputs kOutputs>
int64_t conv_num_partials(const ConvCall& call) {
  return choose_kernel<kOutputs>(call).num_partials;
}

template <Outputs kOutputs>
int64_t conv_workspace_bytes(const ConvCall& call) {
#ifdef TCONV_WALKS_DEPTH
  const int64_t status = choose_kernel<kOutputs>(call).status;
  if (call.depth.walks() && status != kOk) return status;
#endif
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
#ifdef TCONV_WALKS_DEPTH
  if (call.depth.walks()) return launch_behind_slices(plan, call, outputs, workspace);
#endif
#ifdef TCONV_MULTIPLIES_ZEROS
  if (hopper::watches_inputs(plan.hopper, call)) return launch_finite_fallback(plan, call, outputs, workspace);
#endif
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
  if (has_no_outputs(call.layer)) return plan.status;
  explain(plan, call.explanation);
  if (plan.status != kOk) return plan.status;
  if (plan.kernel == kHopper) return launch_hopper<kOutputs>(plan, call, outputs, workspace);
  if (plan.kernel == kPortable) return launch_portable(plan, call, outputs, workspace);
  if (plan.kernel == kDirect) return launch_direct(plan.direct, call, outputs);
#ifdef TCONV_WALKS_DEPTH
  if (call.depth.walks()) return launch_depth_plain(call, outputs.out, nullptr);
#endif
  switch (call.dtype) {
    case kFloat32: return launch_plain<float>(call, outputs.out, outputs.partials);
    case kFloat64: return launch_plain<double>(call, outputs.out, outputs.partials);
    case kFloat16: return launch_plain<__half>(call, outputs.out, outputs.partials);
    default: return launch_plain<__nv_bfloat16>(call, outputs.out, outputs.partials);
  }
}

}  // namespace cuda
}  // namespace tconv
#ifdef TCONV_WALKS_DEPTH
#include "depth_dispatch.cuh"
#endif
#ifdef TCONV_MULTIPLIES_ZEROS
#include "finite_fallback.cuh"
#endif
