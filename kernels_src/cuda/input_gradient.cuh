// The input gradient: a transposed convolution of stride one over g, or over the planes of g (sliding_layer.h), with
// swapped channels and flipped taps, by the forward's kernels; or one thread per value.
#pragma once

#include "conv_transpose.cuh"
#include "conv_transpose_dispatch.cuh"
#include "input_gradient_plain.cuh"
#include "input_gradient_planes.cuh"
#ifdef TCONV_WALKS_DEPTH
#include "input_gradient_volumes.cuh"
#endif
#include "input_gradient_weights.cuh"
#include "recomputed_conv.cuh"

namespace tconv {
namespace cuda {

inline int64_t storage_bytes(int64_t dtype) { return dtype == kFloat64 ? 8 : dtype == kFloat32 ? 4 : 2; }

struct InputGradientPlan {
  int64_t status;
  bool plain;
  SlidingLayer sliding;
  ConvCall walk;     // but for its pointers
  int64_t pitch;     // of planes
  int64_t guard_at;  // of the walk's kernel, in its workspace, where its input's scale is found on the device; or -1
  int64_t weights_at, walk_at, planes_at, total_bytes;  // in the workspace, behind a flag

  explicit InputGradientPlan(const GradientCall& call) : status(kOk), plain(false), sliding(call.conv.layer), walk{} {
    const ConvTransposeLayer& p = call.conv.layer;
    const int64_t element = storage_bytes(call.conv.dtype);
#ifdef TCONV_WALKS_DEPTH
    sliding = SlidingLayer(p, call.depth);
#endif
    pitch = round_up(sliding.w.plane_size, 4);  // whole vectors of pixels
    ConvTransposeLayer& to = walk.layer;
    to.batch = p.batch, to.groups = p.groups;
    to.in_channels = p.groups * sliding.channels_per_group, to.out_channels = p.in_channels;
    to.out_h = p.in_h, to.out_w = p.in_w;
    to.kernel_h = sliding.h.taps, to.kernel_w = sliding.w.taps;
    to.stride_h = to.stride_w = 1;
    to.dilation_h = sliding.h.step, to.dilation_w = sliding.w.step;
    to.padding_h = (sliding.h.taps - 1) * sliding.h.step, to.padding_w = (sliding.w.taps - 1) * sliding.w.step;
    int64_t planes_bytes = 0;
    if (sliding.strided) {
      to.in_h = sliding.h.plane_size, to.in_w = pitch;
      to.x_stride_w = 1, to.x_stride_h = pitch, to.x_stride_c = sliding.h.plane_size * pitch;
      to.x_stride_n = to.in_channels * to.x_stride_c;
      planes_bytes = p.batch * to.x_stride_n * element;
    } else {
      to.padding_h -= p.padding_h, to.padding_w -= p.padding_w;
      to.in_h = p.out_h, to.in_w = call.grad_columns;
      to.x_stride_n = call.grad_stride_n, to.x_stride_c = call.grad_stride_c;
      to.x_stride_h = call.grad_stride_h, to.x_stride_w = call.grad_stride_w;
    }
#ifdef TCONV_WALKS_DEPTH
    planes_bytes *= sliding.d.plane_size;
    walk_volumes(walk, call, sliding);
#endif
    walk.dtype = call.conv.dtype, walk.math = call.conv.math;
    walk.kernel_choice = call.conv.kernel_choice <= kDirect ? call.conv.kernel_choice : kAuto;
    walk.stream = call.conv.stream;
    const KernelPlan& kernel = choose_kernel<Outputs::kAlone>(walk);
    status = kernel.status;
    plain = kernel.kernel == kPlain;
#ifdef TCONV_WALKS_DEPTH
    if (!serves_volumes(call, sliding) || (plain && call.depth.in > 0)) status = kUnsupportedKernel;
#endif
    guard_at = hopper_guard_offset(kernel, walk.dtype);
    if (status != kOk || plain) {
      weights_at = walk_at = planes_at = total_bytes = 0;
      return;
    }
    weights_at = 256;
#ifdef TCONV_WALKS_DEPTH
    const int64_t channels = p.groups * packed_tap_channels(sliding) * sliding.d.taps;
    walk_at =
        weights_at + round_up(channels * (to.out_channels / to.groups) * to.kernel_h * to.kernel_w * element, 256);
#else
    walk_at = weights_at +
              round_up(to.in_channels * (to.out_channels / to.groups) * to.kernel_h * to.kernel_w * element, 256);
#endif
    planes_at = round_up(walk_at + kernel.workspace_bytes, 256);
    total_bytes = planes_at + planes_bytes;
  }

  void* weights(void* workspace) const { return static_cast<char*>(workspace) + weights_at; }
  void* of_walk(void* workspace) const { return static_cast<char*>(workspace) + walk_at; }
  // What infinite values of planes are noted in, where taps are absent: infinity times the zero of such a tap is NaN,
  // where PyTorch has no product.
  int* repair_if(void* workspace) const { return sliding.absent_taps ? static_cast<int*>(workspace) : nullptr; }
};

inline int64_t clear_repair_flag(const GradientCall& call, int* flag) {
  if (flag == nullptr) return kOk;
  return static_cast<int64_t>(cudaMemsetAsync(flag, 0, sizeof(int), static_cast<cudaStream_t>(call.conv.stream)));
}

template <typename Storage>
int64_t repair_input_gradient(const GradientCall& call, const int* repair_if) {
  if (repair_if == nullptr) return kOk;
#ifdef TCONV_WALKS_DEPTH
  if (call.depth.in > 0) return launch_repair_volume_gradient<Storage>(call, repair_if);
#endif
  return launch_input_gradient_plain<Storage>(call, repair_if);
}

template <typename Storage>
int64_t launch_input_gradient(const GradientCall& call, const InputGradientPlan& plan, void* workspace) {
  if (plan.plain) return launch_input_gradient_plain<Storage>(call);
  if constexpr (sizeof(Storage) == 8) {
    return kUnsupportedKernel;  // fp64 has the plain kernel alone
  } else {
    char* const base = static_cast<char*>(workspace);
    ConvCall walk = plan.walk;
    walk.stream = call.conv.stream;
    walk.x = call.grad;
    int* const repair_if = plan.repair_if(workspace);
    TCONV_RETURN_IF_ERROR(clear_repair_flag(call, repair_if));
    if (plan.sliding.strided) {
      TCONV_RETURN_IF_ERROR(
          launch_gradient_planes<Storage>(call, plan.sliding, plan.pitch, base + plan.planes_at, repair_if));
      walk.x = base + plan.planes_at;
    }
    TCONV_RETURN_IF_ERROR(launch_swap_weights<Storage>(call, plan.sliding, plan.weights(workspace)));
    walk.weight = plan.weights(workspace);
    const ConvTransposeLayer& p = call.conv.layer;
#ifdef TCONV_WALKS_DEPTH
    if (plan.guard_at >= 0)
      TCONV_RETURN_IF_ERROR(launch_input_scale(
          sampled_grad(call), reinterpret_cast<GuardState*>(base + plan.walk_at + plan.guard_at), walk.stream));
#else
    if (plan.guard_at >= 0)
      TCONV_RETURN_IF_ERROR(
          launch_input_scale(sampled_tensor(call.grad, p.batch, p.out_channels, p.out_h, p.out_w, call.grad_stride_n,
                                            call.grad_stride_c, call.grad_stride_h, call.grad_stride_w),
                             reinterpret_cast<GuardState*>(base + plan.walk_at + plan.guard_at), walk.stream));
#endif
    TCONV_RETURN_IF_ERROR(
        launch_conv_transpose<Outputs::kAlone>(walk, {call.grad_x, nullptr}, plan.of_walk(workspace)));
    return repair_input_gradient<Storage>(call, repair_if);
  }
}

}  // namespace cuda
}  // namespace tconv
