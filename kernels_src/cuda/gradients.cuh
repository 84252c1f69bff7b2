// The one door to the gradients on CUDA: picks kernels and launches them, one gradient after the other in one
// workspace.
#pragma once

#include <optional>

#include "bias_gradient.cuh"
#include "input_gradient.cuh"
#ifdef TCONV_READS_PACKED
#include "packed_gradients.cuh"
#endif
#include "recomputed_conv.cuh"
#include "weight_gradient.cuh"

namespace tconv {
namespace cuda {

// Which kernels take the gradients of a call, and the workspace, which each in turn has from its beginning.
struct GradientsPlan {
  int64_t status = kOk, total_bytes = 0;
  std::optional<InputGradientPlan> input;
  std::optional<WeightGradientPlan> weight;
  std::optional<BiasGradientPlan> bias;
#ifdef TCONV_READS_PACKED
  std::optional<PackedGradientsPlan> packed;  // of both
#endif

  GradientsPlan(const GradientCall& call, const DeviceLimits& device) {
    const ConvTransposeLayer& p = call.conv.layer;
    const auto raise = [this](int64_t bytes) { total_bytes = bytes > total_bytes ? bytes : total_bytes; };
    if (call.grad_x != nullptr && p.batch > 0) input.emplace(call);
#ifdef TCONV_WALKS_DEPTH
    const bool volumes = of_volumes(call);
    if (of_volumes_alone(call)) {
      plan_weight_alone(call, device);
      return;
    }
    if (volumes)
      weight.emplace(over_planes(call), device);
    else if (call.grad_weight != nullptr)
      weight.emplace(call, device);
#else
    if (call.grad_weight != nullptr) weight.emplace(call, device);
#endif
    if (call.grad_bias != nullptr) {
      bias.emplace(call, device.sm_count);
#ifdef TCONV_WALKS_DEPTH
      raise(bias->num_parts * p.out_channels * int64_t{sizeof(double)});
#else
      raise(bias->num_parts * p.out_channels * (call.conv.dtype == kFloat64 ? 8 : 4));
#endif
    }
    if (input && input->status != kOk) status = input->status;
    if (status == kOk && weight && weight->status != kOk) status = weight->status;
#ifdef TCONV_READS_PACKED
    if (input && weight) packed.emplace(call, *input, *weight);
    if (packed && packed->usable) {
      raise(packed->total_bytes);
#ifdef TCONV_WALKS_DEPTH
      if (volumes) add_residues(call, device, packed->packed_at);
#endif
      return;
    }
    packed.reset();
#endif
#ifdef TCONV_WALKS_DEPTH
    if (volumes) status = kUnsupportedKernel;  // each by itself then
#endif
    if (input) raise(input->total_bytes);
    if (weight) raise(weight->total_bytes);
  }
#ifdef TCONV_WALKS_DEPTH

 private:
  // The weight's of whole volumes.
  void plan_weight_alone(const GradientCall& call, const DeviceLimits& device) {
    weight.emplace(over_planes(call), device, true);
    total_bytes = weight->total_bytes;
    if (weight->status == kOk && weight->kernel == kHopper && packs_chunks(call.conv.layer))
      add_residues(call, device, 0);
    else
      status = kUnsupportedKernel;  // residue by residue then
  }

  // The kernels behind the packed ones, whose place in the workspace they have.
  void add_residues(const GradientCall& call, const DeviceLimits& device, int64_t place) {
    const int64_t bytes = residues_workspace_bytes(call, device);
    if (bytes < 0)
      status = kUnsupportedKernel;
    else
      total_bytes = std::max(total_bytes, place + bytes);
  }
#endif
};

inline int64_t gradients_workspace_bytes(const GradientCall& call) {
  if (call.conv.dtype < kFloat32 || call.conv.dtype > kBFloat16) return kUnsupportedDType;
  if (call.conv.out != nullptr) return conv_workspace_bytes<Outputs::kAlone>(call.conv);
  DeviceLimits device;
  if (query_device_limits(&device) != kOk) return 0;  // the launch will say why
  const GradientsPlan plan(call, device);
  return plan.status < 0 ? plan.status : plan.total_bytes;
}

template <typename Storage>
int64_t launch_gradients(const GradientCall& call) {
  if (call.conv.out != nullptr) return launch_recomputed_conv(call.conv);
  DeviceLimits device;
  TCONV_RETURN_IF_ERROR(query_device_limits(&device));
  const GradientsPlan plan(call, device);
  TCONV_RETURN_IF_ERROR(plan.status);
  void* const workspace = call.conv.workspace;
#ifdef TCONV_WALKS_DEPTH
  if constexpr (sizeof(Storage) < 8)
    if (of_volumes_alone(call))
      return launch_volume_weight_gradient<Storage>(call, *plan.weight, workspace, device, NothingElse{});
#endif
#ifdef TCONV_READS_PACKED
  if constexpr (sizeof(Storage) < 8) {
    if (plan.packed) {
      TCONV_RETURN_IF_ERROR(launch_packed_gradients<Storage>(call, *plan.input, *plan.weight, *plan.packed, device));
      return plan.bias ? launch_bias_gradient<Storage>(call, *plan.bias, workspace) : kOk;
    }
  }
#endif
  if (plan.input) TCONV_RETURN_IF_ERROR(launch_input_gradient<Storage>(call, *plan.input, workspace));
  if (plan.weight) TCONV_RETURN_IF_ERROR(launch_weight_gradient<Storage>(call, *plan.weight, workspace));
  return plan.bias ? launch_bias_gradient<Storage>(call, *plan.bias, workspace) : kOk;
}

}  // namespace cuda
}  // namespace tconv
