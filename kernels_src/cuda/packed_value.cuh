// The convolution's output once more, from x's pixels that the weight gradient has packed, go by go: they are half as
// large as x, and converted already.
#pragma once

#include "packed_gradients.cuh"

namespace tconv {
namespace cuda {

// Of fp32: in 16 bits x is as large as what is packed of it.
class PackedValue {
 public:
  PackedValue(const GradientCall& call, const WeightGradientPlan& weight, WorkspacePlaces& places)
      : call_(call), goes_(weight.goes()) {
    const ConvTransposeLayer& p = call.conv.layer;
    int64_t bytes = 0;
    usable_ = call.conv.dtype == kFloat32 && goes_.x_bytes >> 4 <= INT32_MAX && p.batch > 0;
    for (const int64_t count : {std::min<int64_t>(goes_.images, p.batch), p.batch % goes_.images}) {
      if (!usable_ || count == 0) continue;
      const ConvCall strict = of_images(0, count);
      for (const bool packed : {false, true}) {
        const KernelPlan& plan = choose_kernel<Outputs::kAlone>(packed ? over_packed(strict) : strict);
        bytes = std::max(bytes, plan.workspace_bytes);
        usable_ = usable_ && plan.status == kOk && plan.kernel == kHopper;
        // Even and odd columns at once are read from tensors alone.
        usable_ = usable_ && !(packed && plan.hopper.twin);
#ifdef TCONV_GATHERS_PIXELS
        usable_ = usable_ && plan.hopper.gathered_n == 0;
#endif
      }
    }
    guard_ = places.reserve<GuardState>(1), workspace_ = places.reserve<char>(bytes);
  }

  bool usable() const { return usable_; }

  // What x's pixels are multiplied by, as launch_scales finds it.
  int64_t prepare() const {
    const ConvTransposeLayer& p = call_.conv.layer;
    return launch_input_scale(sampled_tensor(call_.conv.x, p.batch, p.in_channels, p.in_h, p.in_w, p.x_stride_n,
                                             p.x_stride_c, p.x_stride_h, p.x_stride_w),
                              guard_, call_.conv.stream);
  }

  // Of images [first, first + count), whose pixels have just been packed; state: where their guard is.
  int64_t compute(int64_t first, int count, void* packed_workspace, const GradientState* state) const {
    DeviceLimits device;
    TCONV_RETURN_IF_ERROR(query_device_limits(&device));
    const ConvCall strict = of_images(first, count);
    ConvCall walk = over_packed(strict);
    const WeightGradientLayout& layout = goes_.layout;
    hopper::PackedInput packed;
    packed.segments = goes_.x(packed_workspace), walk.x = packed.segments;
    packed.by_segment = FastDivisor::make(static_cast<uint32_t>(layout.segment));
    packed.by_abreast = FastDivisor::make(1);
    packed.columns = static_cast<int>(strict.layer.in_w), packed.rows = layout.x.rows;
    packed.strips = layout.strips, packed.blocks = layout.x.blocks, packed.pitch = 0;
    packed.segment_pixels = layout.x.segment_pixels;
    const ConvOutputs outputs = {strict.out, nullptr};
    TCONV_RETURN_IF_ERROR(
        (hopper::launch_typed<Outputs::kAlone, float>(choose_kernel<Outputs::kAlone>(walk).hopper, walk, outputs,
                                                      nullptr, workspace_, device.sm_count, &packed, guard_)));
    // What containers cannot hold: of weights, of pixels.
    for (const GuardState* guard : {static_cast<const GuardState*>(guard_), &state->guard})
      TCONV_RETURN_IF_ERROR(
          launch_fallback(choose_kernel<Outputs::kAlone>(strict), strict, outputs, workspace_, guard));
    return kOk;
  }

 private:
  // The convolution that made the output.
  ConvCall of_images(int64_t first, int64_t count) const {
    ConvCall made = call_.conv;
    ConvTransposeLayer& p = made.layer;
    made.kernel_choice = made.kernel_choice <= kDirect ? made.kernel_choice : kAuto;
    made.x = static_cast<const float*>(made.x) + first * p.x_stride_n;
    made.out =
        static_cast<float*>(const_cast<void*>(call_.of_chain.value)) + first * p.out_channels * p.out_h * p.out_w;
    p.batch = count;
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

  const GradientCall& call_;
  const PackedGoes& goes_;
  bool usable_;
  GuardState* guard_;
  char* workspace_;
};

}  // namespace cuda
}  // namespace tconv
