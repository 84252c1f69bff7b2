// Picks the kernel for a call and launches it: the definitions behind conv_transpose.cuh.
#pragma once

#include "conv_transpose.cuh"
#include "conv_transpose_mma_launch.cuh"
#include "conv_transpose_plain.cuh"

namespace tconv {
namespace cuda {

struct KernelPlan {
  int64_t status;       // kOk, or why the call cannot be done
  KernelChoice kernel;
  const char* reason;
  TileGeometry geometry;  // kPortable
  int64_t workspace_bytes, num_partials;
};

inline Numeric portable_numeric(const ConvCall& call) {
  if (call.dtype == kFloat16) return Numeric::kFP16;
  if (call.dtype == kBFloat16) return Numeric::kBF16;
  return call.math == kMathStrict ? Numeric::kStrictFP32 : Numeric::kTF32;
}

// Calls f(MmaConfig<...>{}) for the call's numeric mode.
template <typename Function>
auto with_mma_config(const ConvCall& call, Function&& f) {
  switch (portable_numeric(call)) {
    case Numeric::kFP16: return f(MmaConfig<Numeric::kFP16>{});
    case Numeric::kBF16: return f(MmaConfig<Numeric::kBF16>{});
    case Numeric::kStrictFP32: return f(MmaConfig<Numeric::kStrictFP32>{});
    default: return f(MmaConfig<Numeric::kTF32>{});
  }
}

inline bool has_no_outputs(const ConvTransposeProblem& p) {
  return p.batch == 0 || p.out_channels == 0 || p.out_h <= 0 || p.out_w <= 0;
}

inline KernelPlan plain_plan(const ConvCall& call, const char* reason) {
  KernelPlan plan{};
  plan.kernel = kPlain;
  plan.reason = reason;
  plan.num_partials = plain_blocks_per_plane(call.problem);
  return plan;
}

inline KernelPlan failed_plan(int64_t status, const char* reason) {
  KernelPlan plan{};
  plan.status = status;
  plan.reason = reason;
  return plan;
}

// The portable kernel's plan, or a plain one with the reason why not.
inline KernelPlan portable_plan(const ConvCall& call) {
  const ConvTransposeProblem& p = call.problem;
  if (call.dtype == kFloat64) return plain_plan(call, "fp64 has no tensor-core path");
  if (!mma_can_index(p)) return plain_plan(call, "a sample or its strides need 64-bit indices");
  DeviceLimits device;
  const int64_t status = query_device_limits(&device);
  if (status != kOk) return failed_plan(status, "the device cannot be queried");
  if (device.compute_major < 8) return plain_plan(call, "the device has no TF32 and bf16 tensor cores");
  return with_mma_config(call, [&](auto config) {
    using Config = decltype(config);
    KernelPlan plan{};
    if (!choose_geometry<Config>(p, mma_tiles_elsewhere<Config>(p), tile_limits(device), &plan.geometry))
      return plain_plan(call, "no tile fits this device's shared memory");
    plan.kernel = kPortable;
    plan.reason = "tensor cores";
    plan.workspace_bytes = mma_workspace_bytes<Config>(p);
    plan.num_partials = mma_num_partials(p, plan.geometry);
    return plan;
  });
}

// Which kernel a call gets, why, and what it needs. Depends on the call and the current device only.
inline KernelPlan choose_kernel(const ConvCall& call) {
  const ConvTransposeProblem& p = call.problem;
  if (call.dtype < kFloat32 || call.dtype > kBFloat16) return failed_plan(kUnsupportedDType, "unknown dtype");
  if (has_no_outputs(p)) return plain_plan(call, "nothing to compute");
  switch (call.kernel_choice) {
    case kPlain: return plain_plan(call, "forced");
    case kPortable: {
      const KernelPlan plan = portable_plan(call);
      return plan.status == kOk && plan.kernel != kPortable ? failed_plan(kUnsupportedKernel, plan.reason) : plan;
    }
    case kAuto: break;
    default: return failed_plan(kUnsupportedKernel, "no such kernel in this build");
  }
  // Products on padding are wasted; below this share the plain kernel's few real ones are faster.
  constexpr double kMinUsefulFraction = 1.0 / 32;
  const double useful =
      with_mma_config(call, [&](auto config) { return mma_useful_fraction<decltype(config)>(p); });
  if (useful < kMinUsefulFraction) return plain_plan(call, "too few channels per group to fill a tensor-core tile");
  return portable_plan(call);
}

int64_t conv_num_partials(const ConvCall& call) { return choose_kernel(call).num_partials; }

int64_t conv_workspace_bytes(const ConvCall& call) { return choose_kernel(call).workspace_bytes; }

int64_t launch_conv_transpose(const ConvCall& call, const ConvOutputs& outputs, void* workspace) {
  const KernelPlan plan = choose_kernel(call);
  if (plan.status != kOk) return plan.status;
  if (has_no_outputs(call.problem)) return kOk;
  if (plan.kernel == kPortable)
    return with_mma_config(call, [&](auto config) {
      return launch_mma<decltype(config)>(call, plan.geometry, outputs.out, outputs.partials, workspace);
    });
  switch (call.dtype) {
    case kFloat32: return launch_plain<float>(call, outputs.out, outputs.partials);
    case kFloat64: return launch_plain<double>(call, outputs.out, outputs.partials);
    case kFloat16: return launch_plain<__half>(call, outputs.out, outputs.partials);
    default: return launch_plain<__nv_bfloat16>(call, outputs.out, outputs.partials);
  }
}

}  // namespace cuda
}  // namespace tconv
