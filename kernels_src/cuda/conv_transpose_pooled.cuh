// The transposed convolution whose output is never written: the Hopper kernel pools 2 x 2 windows in its epilogue.
// fp32 operands that fp16 containers cannot hold are computed again behind the guard: some samples at a time, by the strict
// kernel into scratch memory, then pooled from there.
#pragma once

#include "conv_transpose_dispatch.cuh"
#include "pool_signed.cuh"

namespace tconv {
namespace cuda {

struct PooledPlan {
  int64_t status;
  const char* reason;  // why not
  sm90::Plan hopper;
  int64_t num_partials, workspace_bytes;
  bool has_fallback;
  TileGeometry fallback;
  int64_t fallback_samples;                                // at a time
  int64_t fallback_workspace, fallback_partials, scratch;  // offsets into the workspace
};

inline PooledPlan no_pooled_plan(int64_t status, const char* reason) {
  PooledPlan plan{};
  plan.status = status;
  plan.reason = reason;
  return plan;
}

// Scratch memory for the fallback's outputs, as a share of input and pooled output.
constexpr double kFallbackMemoryShare = 0.33;

inline PooledPlan plan_pooled_anew(const ConvCall& call) {
  const ConvTransposeProblem& p = call.problem;
  if (call.kernel_choice != kAuto && call.kernel_choice != kHopper)
    return no_pooled_plan(kUnsupportedKernel, "another kernel is forced");
  if (has_no_outputs(p) || p.out_h < 2 || p.out_w < 2) return no_pooled_plan(kUnsupportedKernel, "no whole window");
  if (call.kernel_choice == kAuto && !hopper_pays(p)) return no_pooled_plan(kUnsupportedKernel, "too few channels");
  if (!mma_can_index(p)) return no_pooled_plan(kUnsupportedKernel, "a sample or its strides need 64-bit indices");
  DeviceLimits device;
  const int64_t status = query_device_limits(&device);
  if (status != kOk) return no_pooled_plan(status, "the device cannot be queried");
  PooledPlan plan{};
  plan.hopper = sm90::plan_call(call, true, device);
  if (!plan.hopper.usable) return no_pooled_plan(kUnsupportedKernel, plan.hopper.reason);
  plan.num_partials = plan.hopper.partials_per_sample();
  plan.workspace_bytes = sm90::Sm90Workspace(plan.hopper).total_bytes;
  plan.has_fallback = call.dtype == kFloat32;
  if (!plan.has_fallback) return plan;

  const int64_t sample_bytes = p.out_channels * p.out_h * p.out_w * static_cast<int64_t>(sizeof(float));
  const int64_t tensors = p.batch * (p.in_channels * p.in_h * p.in_w * static_cast<int64_t>(sizeof(float)) + sample_bytes / 4);
  const int64_t rounds = ceil_div(p.batch * sample_bytes, static_cast<int64_t>(kFallbackMemoryShare * tensors) + 1);
  plan.fallback_samples = ceil_div(p.batch, rounds);
  if (!choose_geometry<Fallback>(p, mma_tiles_elsewhere<Fallback>(p), tile_limits(device), &plan.fallback))
    return no_pooled_plan(kUnsupportedKernel, "no tile of the fallback fits this device's shared memory");
  plan.fallback_workspace = round_up(plan.workspace_bytes, 256);
  plan.fallback_partials = round_up(plan.fallback_workspace + MmaWorkspace<Fallback>(p).total_bytes, 256);
  plan.scratch = round_up(plan.fallback_partials + p.batch * mma_num_partials(p, plan.fallback) * p.out_channels *
                                                       static_cast<int64_t>(sizeof(Moments)), 256);
  plan.workspace_bytes = plan.scratch + plan.fallback_samples * sample_bytes;
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
  TCONV_RETURN_IF_ERROR(sm90::launch<true>(plan.hopper, call, outputs, workspace, device.sm_count, pool_weight));
  if (!plan.has_fallback) return kOk;

  char* const base = static_cast<char*>(workspace);
  const int* guard = &sm90::Sm90Workspace(plan.hopper).guard(workspace)->out_of_range;
  Moments* partials = reinterpret_cast<Moments*>(base + plan.fallback_partials);
  const int64_t num_partials = mma_num_partials(p, plan.fallback);
  float* scratch = reinterpret_cast<float*>(base + plan.scratch);
  for (int64_t first = 0; first < p.batch; first += plan.fallback_samples) {
    ConvCall part = call;
    part.problem.batch = first + plan.fallback_samples < p.batch ? plan.fallback_samples : p.batch - first;
    part.x = static_cast<const float*>(call.x) + first * p.x_stride_n;
    Moments* part_partials = outputs.partials == nullptr ? nullptr : partials + first * num_partials * p.out_channels;
    TCONV_RETURN_IF_ERROR(launch_mma<Fallback>(part, plan.fallback, scratch, part_partials, base + plan.fallback_workspace,
                                               guard, first > 0));
    TCONV_RETURN_IF_ERROR(launch_pool_signed(
        scratch, static_cast<float*>(outputs.out) + first * p.out_channels * (p.out_h / 2) * (p.out_w / 2),
        static_cast<const float*>(pool_weight), part.problem, guard, call.stream));
  }
  if (outputs.partials == nullptr) return kOk;
  return launch_merge_moments(partials, num_partials, outputs.partials, plan.num_partials, p.batch, p.out_channels, guard,
                              call.stream);
}

}  // namespace cuda
}  // namespace tconv
