// Both gradients from one packing of g: what the weight gradient's Hopper kernel has packed, the input gradient's
// reads, too, in place of g or of its planes. The batch goes by in as many goes as it is packed in.
#pragma once

#include "input_gradient.cuh"
#ifdef TCONV_SKIPS_TAPS
#include "present_taps.h"
#endif
#ifdef TCONV_WALKS_DEPTH
#include "volume_gradients.cuh"
#endif
#include "weight_gradient.cuh"

namespace tconv {
namespace cuda {

#ifdef TCONV_SKIPS_TAPS
inline PresentTaps present_taps(const GradientCall& call, const SlidingLayer& sliding) {
  const ConvTransposeLayer& p = call.conv.layer;
#ifdef TCONV_WALKS_DEPTH
  const int64_t kernel_d = call.depth.in > 0 ? call.depth.kernel : 1;
#else
  constexpr int64_t kernel_d = 1;
#endif
  return PresentTaps(sliding, p.out_channels / p.groups, kernel_d, p.kernel_h, p.kernel_w);
}

#endif
struct PackedGradientsPlan {
  bool usable;
  int64_t packed_at, planes_at, total_bytes;  // in the workspace, behind what the input gradient has there

  PackedGradientsPlan(const GradientCall& call, const InputGradientPlan& input, const WeightGradientPlan& weight)
      : usable(false), packed_at(0), planes_at(0), total_bytes(0) {
    const bool fp32 = call.conv.dtype == kFloat32;
    if (input.plain || input.status != kOk || weight.status != kOk || weight.kernel != kHopper) return;
    const PackedGoes& goes = weight.goes();
#ifdef TCONV_WALKS_DEPTH
    if (of_volumes(call) && !packs_volumes(call, input.sliding)) return;
#endif
    // In 16 bits nothing says where infinity meets an absent tap. Measured: two blocks of g's channels are read as fast
    // as what is packed of them.
#ifdef TCONV_SKIPS_TAPS
    const bool zeros = input.sliding.absent_taps && present_taps(call, input.sliding).count == 0;
    if (!fp32 && (zeros || (!input.sliding.strided && goes.layout.planes.blocks > 1))) return;
#else
    if (!fp32 && (input.sliding.absent_taps || (!input.sliding.strided && goes.layout.planes.blocks > 1))) return;
#endif
    if (goes.planes_bytes >> 4 > INT32_MAX) return;  // places of chunks are 32-bit numbers
#ifdef TCONV_WALKS_DEPTH
    const int64_t batch = call.conv.layer.batch * input.sliding.d.plane_size;  // images
#else
    const int64_t batch = call.conv.layer.batch;
#endif
    int64_t walk_bytes = 0;
    for (const int64_t count : {std::min<int64_t>(goes.images, batch), batch % goes.images}) {
      if (count == 0) continue;
      const KernelPlan& kernel = choose_kernel<Outputs::kAlone>(packed_walk(call, input, count));
      if (kernel.status != kOk || kernel.kernel != kHopper) return;
#ifdef TCONV_GATHERS_PIXELS
      if (kernel.hopper.gathered_n > 0) return;  // which packs pixels its own way, and is faster by more than that
#endif
      walk_bytes = std::max(walk_bytes, kernel.workspace_bytes);
    }
    usable = true;
    packed_at = std::max<int64_t>(input.planes_at, round_up(input.walk_at + walk_bytes, 256));
    // Behind the state, in place of packed pixels: planes of fp32 for the kernel that takes what containers cannot
    // hold.
    planes_at = packed_at + 256;
    const int64_t planes_bytes = fp32 ? input.total_bytes - input.planes_at : 0;
    total_bytes = std::max(packed_at + weight.total_bytes, planes_at + planes_bytes);
  }

  // A convolution over planes of `count` images, of a layer of stride one, too: what is packed has its padding.
  static ConvCall packed_walk(const GradientCall& call, const InputGradientPlan& input, int64_t count) {
    ConvCall walk = input.walk;
    ConvTransposeLayer& to = walk.layer;
#ifdef TCONV_WALKS_DEPTH
    const bool volumes = call.depth.in > 0;
    const int64_t slices = input.sliding.d.plane_size;
    to.batch = volumes ? count / slices * call.depth.in : count;
    if (volumes) to.in_channels = to.groups * packed_tap_channels(input.sliding) * input.sliding.d.taps;
#else
    to.batch = count;
#endif
#ifdef TCONV_SKIPS_TAPS
    // Blocks of all depth taps as channels of one.
    if (const int64_t blocks = present_taps(call, input.sliding).count) {
      to.in_channels = to.groups * blocks * PresentTaps::kBlockChannels;
#ifdef TCONV_WALKS_DEPTH
      if (volumes) walk.depth.taps = walk.depth.kernel_depth = 1, walk.depth.kernel_first = 0;
#endif
    }
#endif
    to.padding_h = (to.kernel_h - 1) * to.dilation_h, to.padding_w = (to.kernel_w - 1) * to.dilation_w;
    to.in_h = input.sliding.h.plane_size, to.in_w = input.pitch;
    to.x_stride_w = 1, to.x_stride_h = to.in_w, to.x_stride_c = to.in_h * to.in_w;
    to.x_stride_n = to.in_channels * to.x_stride_c;
#ifdef TCONV_WALKS_DEPTH
    if (volumes) {
      walk.depth.in_depth = slices, walk.depth.first = 0;
      walk.depth.x_stride_d = to.x_stride_c, walk.depth.x_stride_n = to.x_stride_n;
    }
#endif
#ifdef TCONV_LOADS_AHEAD
    // To the plan they are pixels that are loaded one by one: what is copied in small pieces takes more warps, too.
    to.x_stride_w = 2;
#endif
    walk.stream = call.conv.stream;
    return walk;
  }
};

#ifdef TCONV_SKIPS_TAPS
inline hopper::PackedInput packed_planes(const PackedGoes& goes, const SlidingLayer& sliding, void* workspace,
                                         const PresentTaps& taps = {}) {
#else
inline hopper::PackedInput packed_planes(const PackedGoes& goes, const SlidingLayer& sliding, void* workspace) {
#endif
  const WeightGradientLayout& layout = goes.layout;
  hopper::PackedInput packed;
  packed.segments = goes.planes(workspace);
  packed.by_segment = FastDivisor::make(static_cast<uint32_t>(layout.segment));
  packed.by_abreast = FastDivisor::make(static_cast<uint32_t>(layout.abreast));
  packed.columns = static_cast<int>(sliding.w.plane_size), packed.rows = layout.planes.rows;
  packed.strips = layout.strips, packed.blocks = layout.planes.blocks;
  packed.pitch = layout.abreast > 1 ? layout.pitch : 0;
  packed.segment_pixels = layout.planes.segment_pixels;
#ifdef TCONV_SKIPS_TAPS
  packed.taps = taps;
#endif
#ifdef TCONV_WALKS_DEPTH
  packed.by_blocks = FastDivisor::make(static_cast<uint32_t>(layout.planes.blocks));
  packed.slices = static_cast<int>(sliding.d.plane_size), packed.groups = layout.groups;
#endif
  return packed;
}

template <typename Storage>
int64_t launch_packed_gradients(const GradientCall& call, const InputGradientPlan& input,
                                const WeightGradientPlan& weight, const PackedGradientsPlan& plan,
                                const DeviceLimits& device) {
  void* const workspace = call.conv.workspace;
  char* const base = static_cast<char*>(workspace);
  void* const packed_workspace = base + plan.packed_at;
  const PackedGoes& goes = weight.goes();
  GuardState* const guard = sizeof(Storage) == 4 ? &goes.state(packed_workspace)->guard : nullptr;
#ifdef TCONV_SKIPS_TAPS
  const PresentTaps taps = present_taps(call, input.sliding);
#endif
#ifdef TCONV_WALKS_DEPTH
#ifdef TCONV_SKIPS_TAPS
  TCONV_RETURN_IF_ERROR(launch_swap_weights<Storage>(call, input.sliding, input.weights(workspace),
                                                     packed_tap_channels(input.sliding), taps));
#else
  TCONV_RETURN_IF_ERROR(
      launch_swap_weights<Storage>(call, input.sliding, input.weights(workspace), packed_tap_channels(input.sliding)));
#endif
#else
  TCONV_RETURN_IF_ERROR(launch_swap_weights<Storage>(call, input.sliding, input.weights(workspace)));
#endif
#ifdef TCONV_SKIPS_TAPS
  const hopper::PackedInput packed = packed_planes(goes, input.sliding, packed_workspace, taps);
#else
  const hopper::PackedInput packed = packed_planes(goes, input.sliding, packed_workspace);
#endif
#ifdef TCONV_WALKS_DEPTH
  const int64_t depth = call.depth.in > 0 ? call.depth.in : 1;
  const int64_t volume = call.conv.layer.in_channels * depth * call.conv.layer.in_h * call.conv.layer.in_w;
#else
  const int64_t image = call.conv.layer.in_channels * call.conv.layer.in_h * call.conv.layer.in_w;
#endif
  const auto after_go = [&](int64_t first, int count) {
    ConvCall walk = PackedGradientsPlan::packed_walk(call, input, count);
    walk.x = packed.segments, walk.weight = input.weights(workspace);
#ifdef TCONV_WALKS_DEPTH
    const int64_t before = first / input.sliding.d.plane_size * volume;
    const ConvOutputs outputs = {static_cast<Storage*>(call.grad_x) + before, nullptr};
#else
    const ConvOutputs outputs = {static_cast<Storage*>(call.grad_x) + first * image, nullptr};
#endif
    return hopper::launch_typed<Outputs::kAlone, Storage>(choose_kernel<Outputs::kAlone>(walk).hopper, walk, outputs,
                                                          nullptr, input.of_walk(workspace), device.sm_count, &packed,
                                                          guard);
  };
#ifdef TCONV_WALKS_DEPTH
  TCONV_RETURN_IF_ERROR(of_volumes(call)
                            ? launch_volume_weight_gradient<Storage>(call, weight, packed_workspace, device, after_go)
                            : launch_weight_gradient<Storage>(call, weight, packed_workspace, after_go));
#else
  TCONV_RETURN_IF_ERROR(launch_weight_gradient<Storage>(call, weight, packed_workspace, after_go));
#endif
  if (guard == nullptr) return kOk;
  // What containers cannot hold, by the strict kernel.
  ConvCall walk = input.walk;
  walk.stream = call.conv.stream;
  walk.x = call.grad, walk.weight = input.weights(workspace);
  int* const repair_if = input.repair_if(workspace);
  TCONV_RETURN_IF_ERROR(clear_repair_flag(call, repair_if));
  if (input.sliding.strided) {
    walk.x = base + plan.planes_at;
    TCONV_RETURN_IF_ERROR(launch_gradient_planes<Storage>(call, input.sliding, input.pitch, base + plan.planes_at,
                                                          repair_if, &guard->out_of_range));
  }
#ifdef TCONV_WALKS_DEPTH
  if (walk.depth.walks()) {
#ifdef TCONV_SKIPS_TAPS
    if (taps.count > 0 || packed_tap_channels(input.sliding) != input.sliding.channels_per_group)
#else
    if (packed_tap_channels(input.sliding) != input.sliding.channels_per_group)
#endif
      TCONV_RETURN_IF_ERROR(launch_swap_weights<Storage>(call, input.sliding, input.weights(workspace)));
    TCONV_RETURN_IF_ERROR(launch_depth_plain(walk, call.grad_x, &guard->out_of_range));
    return repair_input_gradient<Storage>(call, repair_if);
  }
#endif
  TCONV_RETURN_IF_ERROR(launch_fallback(choose_kernel<Outputs::kAlone>(walk), walk, {call.grad_x, nullptr},
                                        input.of_walk(workspace), guard));
  return repair_input_gradient<Storage>(call, repair_if);
}

}  // namespace cuda
}  // namespace tconv
