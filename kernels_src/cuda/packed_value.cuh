// The convolution's output once more, from x's pixels that the weight gradient has packed: they are half as large as x,
// and converted already.
#pragma once

#include <vector>

#include "chain_slice_places.h"
#include "packed_gradients.cuh"
#include "slice_kernel.cuh"

namespace tconv {
namespace cuda {

// Of fp32: in 16 bits x is as large as what is packed of it.
class PackedValue {
 public:
  PackedValue(const GradientCall& call, const std::vector<Slice>& slices, const DeviceLimits& device,
              WorkspacePlaces& places)
      : call_(call), device_(device), usable_(call.conv.dtype == kFloat32) {
    int64_t bytes = 0;
    for (const Slice& slice : slices) {
      const ConvCall strict = of_images(slice, nullptr);
      const KernelPlan plan = choose_kernel<Outputs::kAlone>(strict);
      const SliceKernel kernel = kernel_of(strict);
      usable_ = usable_ && kernel.usable &&
                share_weights(kernel.plan, kernel_of(of_images(slices.front(), nullptr)).plan) && plan.status == kOk &&
                plan.kernel == kHopper;
      bytes = std::max(bytes, slice_workspace_bytes(kernel, plan));
    }
    workspace_ = places.reserve<char>(bytes);
  }

  bool usable() const { return usable_; }

  // Once for all slices. guard: is up where containers cannot hold them.
  int64_t transform_weights(const Slice& slice, GuardState* guard) const {
    const ConvCall strict = of_images(slice, nullptr);
    hopper::PackedInput packed;
    packed.step = hopper::PackedInput::kWeights;
    return launch(strict, packed, {nullptr, nullptr}, guard);
  }

  // Of a slice whose pixels lie packed. guard: of these, and of weights; scale: says what x was multiplied by.
  int64_t compute(const Slice& slice, const PackedGoes& goes, void* packed_workspace, float* value,
                  const GuardState* guard, GuardState* scale) const {
    const ConvCall strict = of_images(slice, value);
    const WeightGradientLayout& layout = goes.layout;
    hopper::PackedInput packed;
    packed.segments = goes.x(packed_workspace);
    packed.by_segment = FastDivisor::make(static_cast<uint32_t>(layout.segment));
    packed.by_abreast = FastDivisor::make(1);
    packed.columns = static_cast<int>(strict.layer.in_w), packed.rows = layout.x.rows;
    packed.strips = layout.strips, packed.blocks = layout.x.blocks, packed.pitch = 0;
    packed.segment_pixels = layout.x.segment_pixels;
    packed.step = hopper::PackedInput::kOutputs;
    const ConvOutputs outputs = {value, nullptr};
    TCONV_RETURN_IF_ERROR(launch(strict, packed, outputs, scale));
    return launch_fallback(choose_kernel<Outputs::kAlone>(strict), strict, outputs, workspace_, guard);
  }

 private:
  // The convolution that made the output.
  ConvCall of_images(const Slice& slice, float* value) const {
    ConvCall made = call_.conv;
    ConvTransposeLayer& p = made.layer;
    made.kernel_choice = made.kernel_choice <= kDirect ? made.kernel_choice : kAuto;
    made.x = static_cast<const float*>(made.x) + slice.first * p.x_stride_n;
    made.out = value;
    p.batch = slice.count;
    return made;
  }

  // The same as the kernel over packed pixels is asked for it: rows in whole quads, of which those beyond are absent.
  static ConvCall over_packed(ConvCall made) {
    ConvTransposeLayer& p = made.layer;
    p.in_w = round_up(p.in_w, hopper::kVectorPixels);
    p.x_stride_w = 1, p.x_stride_h = p.in_w, p.x_stride_c = p.in_h * p.in_w;
    p.x_stride_n = p.in_channels * p.x_stride_c;
    return made;
  }

  int64_t launch(const ConvCall& strict, const hopper::PackedInput& packed, const ConvOutputs& outputs,
                 GuardState* guard) const {
    ConvCall walk = over_packed(strict);
    walk.x = packed.segments;
    return hopper::launch_typed<Outputs::kAlone, float>(kernel_of(strict).plan, walk, outputs, nullptr, workspace_,
                                                        device_.sm_count, &packed, guard);
  }

  SliceKernel kernel_of(const ConvCall& strict) const {
    ConvCall whole = strict;
    whole.layer.batch = call_.conv.layer.batch;
    return slice_kernel(over_packed(whole), over_packed(strict), device_.sm_count);
  }

  const GradientCall& call_;
  const DeviceLimits& device_;
  bool usable_;
  char* workspace_;
};

}  // namespace cuda
}  // namespace tconv
