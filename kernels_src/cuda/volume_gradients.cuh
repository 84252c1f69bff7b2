// Both gradients of three dimensions from one packing of grad: its planes of all three axes (sliding_layer.h), an image
// for each slice j of a volume's planes, with the classes in depth outermost among the channels. The weight's gradient
// multiplies them by x with its depth taps as channels,
//   channel (m, c) of image j  is  x[n, c, j - m * step, :, :],
// and the input's gradient reads tap m of slice i from image i + m * step. What containers cannot hold, and what is not
// finite, is computed as without it: residue by residue (depth_residue.h).
#pragma once

#include "../depth_residue.h"
#include "weight_gradient.cuh"

namespace tconv {
namespace cuda {

// Does a call ask for both gradients of whole volumes?
inline bool of_volumes(const GradientCall& call) {
  return call.depth.in > 0 && call.grad_x != nullptr && call.grad_weight != nullptr;
}

// For the weight's alone? x is then packed once for all depth taps, where residue by residue it is once for each.
inline bool of_volumes_alone(const GradientCall& call) {
  return call.depth.in > 0 && call.grad_x == nullptr && call.grad_weight != nullptr;
}

// The weight's gradient over images of planes; call.depth says where their slices lie in grad.
inline GradientCall over_planes(const GradientCall& call) {
  const SlidingAxis axis = SlidingLayer(call.conv.layer, call.depth).d;
  GradientCall made = call;
  made.grad_x = nullptr, made.grad_bias = nullptr;
  DepthWalk& walk = made.conv.depth;
  walk.slices = axis.plane_size, walk.taps = axis.taps, walk.in_depth = call.depth.in;
  walk.first = 0, walk.step = -axis.step;
  walk.kernel_depth = call.depth.kernel, walk.kernel_first = 0, walk.kernel_step = -axis.kernel_step;
  ConvTransposeLayer& p = made.conv.layer;
  p.batch *= walk.slices, p.in_channels *= walk.taps;
  p.x_stride_n = walk.x_stride_n | walk.x_stride_d;
  return made;
}

// The weight's gradient of one residue's slices of grad.
inline GradientCall over_residue(const GradientCall& call, int64_t residue) {
  GradientCall made = call;
  made.grad_x = nullptr, made.grad_bias = nullptr;
  const DepthWalk volumes = call.conv.depth;
  DepthWalk& walk = made.conv.depth;
  walk = residue_walk(call.depth, residue);
  walk.x_stride_n = volumes.x_stride_n, walk.x_stride_d = volumes.x_stride_d;
  const int64_t element = storage_bytes(call.conv.dtype);
  made.grad = static_cast<const char*>(call.grad) + residue * call.depth.grad_stride * element;
  walk.out_stride_n = call.grad_stride_n, walk.out_stride_c = call.grad_stride_c;
  walk.out_stride_d = call.depth.stride * call.depth.grad_stride;
  made.grad_stride_n = call.grad_stride_n | call.depth.grad_stride;
  ConvTransposeLayer& p = made.conv.layer;
  p.batch *= walk.slices, p.in_channels *= walk.tap_count();
  p.x_stride_n = walk.x_stride_n | walk.x_stride_d;
  made.depth = {};
  return made;
}

inline int64_t num_residues(const GradientCall& call) { return std::min(call.depth.stride, call.depth.out); }

// Kernels behind those of 16-bit operands, of one residue.
struct ResidueRepair {
  SlidingLayer sliding;
  WeightGradientPlainPlan plain;
  PortableGradientPlan strict;  // of fp32
  bool usable;

  ResidueRepair(const GradientCall& residue, const DeviceLimits& device)
      : sliding(residue.conv.layer), plain(residue.conv.layer, device.sm_count), strict{}, usable(true) {
    if (residue.conv.dtype != kFloat32) return;
    usable = weight_gradient_can_index(residue.conv.layer, sliding);
    if (usable) strict = portable_gradient_plan(residue.conv.layer, sliding, 3, device, true);
    usable = usable && strict.usable;
  }
};

// What the residues' kernels need of the workspace, or -1 where they cannot stand behind the others.
inline int64_t residues_workspace_bytes(const GradientCall& call, const DeviceLimits& device) {
  int64_t bytes = 0, taps = 0;
  for (int64_t residue = 0; residue < num_residues(call); ++residue) {
    const GradientCall made = over_residue(call, residue);
    taps += made.conv.depth.taps;
    if (made.conv.depth.taps == 0) continue;
    const ResidueRepair repair(made, device);
    if (!repair.usable) return -1;
    bytes = std::max(bytes, repair.strict.total_bytes);
  }
  return taps == call.depth.kernel ? bytes : -1;  // a tap that reads no slice is no residue's
}

// Do chunks of 8 channels lie in one slice each?
inline bool packs_chunks(const ConvTransposeLayer& p) {
  return p.out_channels / p.groups % 8 == 0 && p.in_channels / p.groups % 8 == 0;
}

// Do channels of planes and taps lie as both kernels read them? Those that fill up a tap's blocks are multiplied, too.
inline bool packs_volumes(const GradientCall& call, const SlidingLayer& sliding) {
  constexpr int64_t kMostPadding = 2;
  return packs_chunks(call.conv.layer) && packed_tap_channels(sliding) <= kMostPadding * sliding.channels_per_group;
}

template <typename Storage, typename AfterGo>
int64_t launch_volume_weight_gradient(const GradientCall& call, const WeightGradientPlan& plan, void* workspace,
                                      const DeviceLimits& device, const AfterGo& after_go) {
  constexpr bool kBFloat16 = std::is_same_v<Storage, __nv_bfloat16>;
  const GradientCall planes = over_planes(call);
  GradientState* state = nullptr;
  if constexpr (sizeof(Storage) == 4) {
    state = plan.goes().state(workspace);
    TCONV_RETURN_IF_ERROR(launch_scales(planes, state));
  }
  TCONV_RETURN_IF_ERROR((launch_weight_gradient_16_bit<kBFloat16, Storage>(planes, plan, workspace, state, after_go)));
#ifdef TCONV_GRADIENT_CHAINS
  if (call.packer != nullptr)
    TCONV_RETURN_IF_ERROR(call.packer->materialise(state == nullptr ? nullptr : &state->guard.out_of_range));
#endif
  for (int64_t residue = 0; residue < num_residues(call); ++residue) {
    const GradientCall made = over_residue(call, residue);
    if (made.conv.depth.taps == 0) continue;
    const ResidueRepair repair(made, device);
    if constexpr (sizeof(Storage) == 4)
      TCONV_RETURN_IF_ERROR((launch_weight_gradient_portable<3, true, true, Storage>(
          made, repair.sliding, repair.strict, workspace, nullptr, &state->guard.out_of_range)));
    TCONV_RETURN_IF_ERROR(launch_weight_gradient_repair<Storage>(made, repair.plain));
  }
  return kOk;
}

}  // namespace cuda
}  // namespace tconv
