// Gradients of a convolution and of a chain behind it, slice by slice of the batch (chain_slice_places.h): the
// convolution's output is computed again from packed pixels, g formed as it is packed, and both of the convolution's
// gradients read the packing. A slice has all of it, its repairs, too, before the next one takes its place. Of fp32
// with TF32 allowed, and layers of stride one.
#pragma once

#include <vector>

#include "chain_packer.cuh"
#include "chain_slice_places.h"
#include "packed_value.cuh"
#include "slice_begin.cuh"
#include "slice_sums.cuh"

namespace tconv {
namespace cuda {

// Where x alone is packed.
struct NothingToPack final : PlanesPacker {
  int64_t sample(unsigned*) const override { return kOk; }
  int64_t pack(const PackedGoes&, int64_t, int, void*, GradientState*) const override { return kOk; }
  int64_t materialise(const int*) const override { return kOk; }
};

inline SliceBytes slice_bytes(const GradientCall& call, const WeightGradientLayout& layout) {
  const ConvTransposeLayer& p = call.conv.layer;
  SliceBytes bytes;
  bytes.grad_x = p.in_channels * p.in_h * p.in_w * static_cast<int64_t>(sizeof(float));
  bytes.value = p.out_channels * p.out_h * p.out_w * static_cast<int64_t>(sizeof(float));
  bytes.x = layout.x.sample_segments(layout.groups, layout.strips) * layout.x.segment_bytes;
  bytes.planes = layout.planes.sample_segments(layout.groups, layout.strips) * layout.planes.segment_bytes;
  return bytes;
}

// Places are 32-bit numbers: those of output values, and of 16 packed bytes.
inline int64_t most_of_slice(const SliceBytes& image) {
  const int64_t values = image.value / static_cast<int64_t>(sizeof(float));
  return std::max<int64_t>(1, INT32_MAX / std::max({values, image.x >> 4, image.planes >> 4, int64_t{1}}));
}

// The strict kernel's parts lie where a slice's gradient is written next, or in the workspace.
template <int kChain>
class ChainSlices {
 public:
  using Packer = ChainPacker<kChain, float>;

  // plan: of the whole batch.
  ChainSlices(const GradientCall& call, const GroupNormGradientCall& chain, const GradientsPlan& plan,
              const DeviceLimits& device, WorkspacePlaces& places)
      : call_(call),
        weight_(*plan.weight),
        device_(device),
        image_(slice_bytes(call, weight_.goes().layout)),
        slices_(slices_of(image_, call.conv.layer.batch, most_of_slice(image_))),
        value_(call, slices_, device, places),
        packer_(call, chain, weight_, places) {
    usable_ = !slices_.empty() && value_.usable() && !plan.input->sliding.strided;
    const ConvTransposeLayer& p = call.conv.layer;
    num_weights_ = p.in_channels * (p.out_channels / p.groups) * p.kernel_h * p.kernel_w;
    int64_t input_bytes = 0, strict_bytes = 0;
    for (const Slice& slice : slices_) {
      inputs_.emplace_back(of_slice(slice, nullptr));
      const InputGradientPlan& input = inputs_.back();
      const SliceKernel kernel = kernel_of(input);
      usable_ = usable_ && input.status == kOk && !input.plain && kernel.usable &&
                share_weights(kernel.plan, kernel_of(inputs_.front()).plan);
      input_bytes = std::max(input_bytes,
                             input.walk_at + slice_workspace_bytes(kernel, choose_kernel<Outputs::kAlone>(input.walk)));
      if (!strict_in_own(slice)) strict_bytes = weight_.strict.total_bytes;
    }
    cleared_ = places.reserve<Cleared>(1);
    strict_weights_ = places.reserve<float>((num_slices() + 1) * num_weights_);  // and what tensor cores sum up
    const int64_t of_packing = weight_.hopper.goes.total_bytes;
    parts_ = places.reserve<char>(weight_.hopper.total_bytes - of_packing);
    input_workspace_ = places.reserve<char>(input_bytes);
    strict_workspace_ = places.reserve<char>(strict_bytes);
    spare_ = places.reserve<char>(image_.spare(p.batch));
  }

  bool usable() const { return usable_; }

  int64_t launch() const {
    TCONV_RETURN_IF_ERROR(clear(cleared_, sizeof(Cleared)));
    TCONV_RETURN_IF_ERROR(clear(strict_weights_, num_slices() * num_weights_ * sizeof(float)));
    TCONV_RETURN_IF_ERROR(sample_x());
    TCONV_RETURN_IF_ERROR(
        launch_swap_weights<float>(call_, weight_.sliding, inputs_.front().weights(input_workspace_)));
    TCONV_RETURN_IF_ERROR(value_.transform_weights(slices_.front(), &cleared_->shared.of_x));
    for (int64_t i = 0; i < num_slices(); ++i) TCONV_RETURN_IF_ERROR(launch_slice(i));
    GradientCall sums = call_;
    sums.grad_weight = strict_weights_ + num_slices() * num_weights_;
    TCONV_RETURN_IF_ERROR(pixels::launch_hopper_sums<float>(sums, weight_.sliding, weight_.hopper,
                                                            reinterpret_cast<const float*>(parts_), &cleared_->state));
    TCONV_RETURN_IF_ERROR(launch_slice_sums(strict_weights_, static_cast<float*>(call_.grad_weight), num_slices() + 1,
                                            num_weights_, call_.conv.stream));
    return packer_.add_up();
  }

 private:
  struct Cleared {
    GradientState state;  // of what is packed of a slice
    SharedGuards shared;
  };

  int64_t num_slices() const { return static_cast<int64_t>(slices_.size()); }

  int64_t clear(void* words, size_t bytes) const {
    return static_cast<int64_t>(cudaMemsetAsync(words, 0, bytes, static_cast<cudaStream_t>(call_.conv.stream)));
  }

  char* at(const SlicePlace& place) const {
    return (place.spare ? spare_ : static_cast<char*>(call_.grad_x)) + place.at;
  }

  // `value`: where the output lies, and g, should it be read.
  GradientCall of_slice(const Slice& slice, float* value) const {
    GradientCall made = call_;
    ConvTransposeLayer& p = made.conv.layer;
    p.batch = slice.count;
    made.conv.x = static_cast<const float*>(made.conv.x) + slice.first * p.x_stride_n;
    made.grad = value;
    made.grad_x = static_cast<char*>(made.grad_x) + slice.first * image_.grad_x;
    return made;
  }

  SliceKernel kernel_of(const InputGradientPlan& input) const {
    const auto of_images = [&](int64_t count) { return PackedGradientsPlan::packed_walk(call_, input, count); };
    return slice_kernel(of_images(call_.conv.layer.batch), of_images(input.walk.layer.batch), device_.sm_count);
  }

  bool strict_in_own(const Slice& slice) const {
    return slice.count * image_.grad_x >= weight_.strict.total_bytes + SlicesConfig::kAlignment;
  }

  void* strict_workspace(const Slice& slice) const {
    if (!strict_in_own(slice)) return strict_workspace_;
    return static_cast<char*>(call_.grad_x) + round_up(slice.first * image_.grad_x, SlicesConfig::kAlignment);
  }

  int64_t sample_x() const {
    const ConvTransposeLayer& p = call_.conv.layer;
    MagnitudeSampleArgs args;
    args.tensors[0] = sampled_tensor(call_.conv.x, p.batch, p.in_channels, p.in_h, p.in_w, p.x_stride_n, p.x_stride_c,
                                     p.x_stride_h, p.x_stride_w);
    args.tensors[1] = args.tensors[0];
    args.largest[0] = &cleared_->state.largest_of_x, args.largest[1] = &cleared_->shared.of_x.largest;
    return launch_sample_magnitudes(args, 2, call_.conv.stream);
  }

  // x's gradient, or no more than its weights.
  int64_t launch_input(const InputGradientPlan& input, const hopper::PackedInput& packed, void* grad_x,
                       GuardState* guard) const {
    ConvCall walk = PackedGradientsPlan::packed_walk(call_, input, input.walk.layer.batch);
    walk.x = packed.segments, walk.weight = input.weights(input_workspace_);
    return hopper::launch_typed<Outputs::kAlone, float>(kernel_of(input).plan, walk, {grad_x, nullptr}, nullptr,
                                                        input.of_walk(input_workspace_), device_.sm_count, &packed,
                                                        guard);
  }

  // From the first slice's g.
  int64_t find_scale_of_planes(const typename Packer::KernelArgs& chain) const {
    SharedGuards* const shared = &cleared_->shared;
    TCONV_RETURN_IF_ERROR(packer_.sample_of(chain, &shared->of_planes.largest));
    hopper::PackedInput packed;
    packed.step = hopper::PackedInput::kWeights;
    TCONV_RETURN_IF_ERROR(launch_input(inputs_.front(), packed, nullptr, &shared->of_planes));
    return launch_begin_slice(&cleared_->state.guard, shared, true, call_.conv.stream);
  }

  int64_t launch_slice(int64_t index) const {
    const Slice& slice = slices_[static_cast<size_t>(index)];
    const InputGradientPlan& input = inputs_[static_cast<size_t>(index)];
    const SlidingLayer& sliding = weight_.sliding;
    const int count = static_cast<int>(slice.count);
    GradientState* const state = &cleared_->state;
    const int* const guard = &state->guard.out_of_range;
    float* const value = reinterpret_cast<float*>(at(slice.value));
    GradientCall call = of_slice(slice, value);

    // Distances from where x lies packed, with a state before it.
    PackedGoes goes = weight_.goes();
    char* const packed = at(slice.x) - (reinterpret_cast<char*>(goes.x(at(slice.x))) - at(slice.x));
    goes.x_bytes = at(slice.planes) - at(slice.x);
    goes.planes_bytes = parts_ - at(slice.planes);

    TCONV_RETURN_IF_ERROR(launch_begin_slice(&state->guard, &cleared_->shared, false, call.conv.stream));
    const NothingToPack x_alone;
    call.packer = &x_alone;
    TCONV_RETURN_IF_ERROR((launch_pack<1, float>(call, sliding, goes, 0, count, packed, state)));
    TCONV_RETURN_IF_ERROR(value_.compute(slice, goes, packed, value, &state->guard, &cleared_->shared.of_x));
    const auto chain = packer_.of_images(slice.first, slice.count, value);
    TCONV_RETURN_IF_ERROR(packer_.sum_up(chain));
    if (index == 0) TCONV_RETURN_IF_ERROR(find_scale_of_planes(chain));
    TCONV_RETURN_IF_ERROR(packer_.pack_images(goes, slice.first, count, value, packed, state));
    TCONV_RETURN_IF_ERROR(pixels::launch_products<false>(call, weight_.hopper, goes, packed, count, index > 0, guard));
    hopper::PackedInput planes = packed_planes(goes, sliding, packed);
    planes.step = hopper::PackedInput::kOutputs;
    TCONV_RETURN_IF_ERROR(launch_input(input, planes, call.grad_x, &state->guard));

    // What containers cannot hold is the strict kernels', which read g: it lies where the slice's part of x's gradient
    // does not.
    TCONV_RETURN_IF_ERROR(packer_.materialise_if(chain, guard, nullptr));
    call.grad_weight = strict_weights_ + index * num_weights_;
    TCONV_RETURN_IF_ERROR((launch_weight_gradient_portable<3, true, true, float>(
        call, sliding, weight_.strict, strict_workspace(slice), nullptr, guard)));
    TCONV_RETURN_IF_ERROR(launch_weight_gradient_repair<float>(call, weight_.plain));
    ConvCall walk = input.walk;
    walk.stream = call.conv.stream;
    walk.x = value, walk.weight = input.weights(input_workspace_);
    return launch_fallback(choose_kernel<Outputs::kAlone>(walk), walk, {call.grad_x, nullptr},
                           input.of_walk(input_workspace_), &state->guard);
  }

  const GradientCall& call_;
  const WeightGradientPlan& weight_;
  const DeviceLimits& device_;
  SliceBytes image_;
  std::vector<Slice> slices_;
  PackedValue value_;
  Packer packer_;
  std::vector<InputGradientPlan> inputs_;  // of each slice
  bool usable_;
  int64_t num_weights_;
  Cleared* cleared_;
  float* strict_weights_;
  char *parts_, *input_workspace_, *strict_workspace_, *spare_;
};

}  // namespace cuda
}  // namespace tconv
