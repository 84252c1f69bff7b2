// Gradients of three dimensions, for what the kernels read without copies: slices of volumes as images (depth_walk.h).
// Declined, with an empty result, as operator_depth.h declines.
#pragma once

#include "operator_depth.h"

namespace tconv {
namespace binding {

struct DepthGradientInputs {
  Tensor grad;
  DepthInputs of;

  explicit DepthGradientInputs(Stack& stack) : grad(stack.tensor()), of(stack) {}

  bool fits() const {
    if (!of.fits() || !of.has_outputs() || grad.dim() != 5 || !of.is_of_kind(grad)) return false;
    if (of.x.size(1) / of.g.plane.groups % kDepthChannels != 0) return false;
    const ConvTransposeLayer image = of.image();
    const int64_t wanted[] = {of.x.size(0), image.out_channels, of.out_depth(), image.out_h, image.out_w};
    for (int64_t axis = 0; axis < 5; ++axis)
      if (grad.size(axis) != wanted[axis]) return false;
    return true;
  }

  // Are numbers of slices 32-bit ones?
  bool can_count_images() const { return of.x.size(0) <= INT_MAX / 4 / of.x.size(2); }

  // Of all slices; but for its results.
  GradientCall volumes() const {
    const auto strides = grad.strides();
    ConvTransposeLayer p = of.image();
    p.batch = of.x.size(0), p.in_channels = of.x.size(1);
    GradientCall call{};
    call.conv = make_call(p, kernel_dtype(torch_dtype_of(of.x)), of.tf32);
    call.grad = pointer_of(grad);
    call.grad_stride_n = strides[0], call.grad_stride_c = strides[1];
    call.grad_stride_h = strides[3], call.grad_stride_w = strides[4];
    call.grad_columns = grad.sizes()[4];
    call.conv.x = pointer_of(of.x);
    call.conv.depth.x_stride_n = of.x.strides()[0], call.conv.depth.x_stride_d = of.x.strides()[2];
    call.depth = {of.x.size(2), of.out_depth(), of.weight.size(2), of.g.stride,
                  of.g.padding, of.g.dilation,  strides[2]};
    return call;
  }

  // Of the slices of grad that are of a residue; but for its results.
  GradientCall residue(int64_t residue) const {
    const auto strides = grad.strides();
    GradientCall call{};
    call.conv = residue_call(of, of.image(), of.out_depth(), residue);
    DepthWalk& walk = call.conv.depth;
    walk.out_stride_n = strides[0], walk.out_stride_c = strides[1], walk.out_stride_d = strides[2] * of.g.stride;
    call.conv.x = pointer_of(of.x);
    call.grad = static_cast<const char*>(pointer_of(grad)) +
                residue * strides[2] * static_cast<int64_t>(aoti_torch_dtype_element_size(torch_dtype_of(grad)));
    call.grad_stride_n = strides[0] | strides[2];  // as x's
    call.grad_stride_c = strides[1], call.grad_stride_h = strides[3], call.grad_stride_w = strides[4];
    call.grad_columns = grad.sizes()[4];
    return call;
  }
};

// An empty tensor.
inline Tensor declined(const DepthGradientInputs& in) {
  const int64_t nothing[] = {0};
  return allocate(nothing, 1, torch_dtype_of(in.of.x), device_of(in.of.x));
}

// The weight's gradient as [in_channels * out_channels / groups, depth, height, width].
inline Tensor weight_gradient_of_volumes(const DepthGradientInputs& in) {
  if (!in.fits()) return declined(in);
  const Device device = device_of(in.of.x);
  const auto kernel = in.of.weight.sizes();
  const int64_t sizes[] = {kernel[0] * kernel[1], kernel[2], kernel[3], kernel[4]};
  if (in.of.g.stride == 1 && in.can_count_images()) {  // one residue: at once, where that is served
    std::vector<GradientCall> whole = {in.volumes()};
    whole[0].grad_weight = pointer_of(in.of.weight);
    if (all_served(whole, device)) {
      Tensor found = allocate(sizes, 4, torch_dtype_of(in.of.x), device);
      whole[0].grad_weight = pointer_of(found);
      launch(whole[0], device);
      return found;
    }
  }
  std::vector<GradientCall> calls;
  int64_t taps = 0;
  const int64_t residues = std::min(in.of.g.stride, in.of.out_depth());
  for (int64_t residue = 0; residue < residues; ++residue) {
    GradientCall call = in.residue(residue);
    if (call.conv.depth.taps == 0) continue;
    taps += call.conv.depth.taps;
    call.grad_weight = pointer_of(in.of.weight);  // is there, no more is asked
    calls.push_back(call);
  }
  if (!all_served(calls, device)) return declined(in);
  Tensor found = allocate(sizes, 4, torch_dtype_of(in.of.x), device);
  if (taps < kernel[2]) torch::stable::zero_(found);  // those through which no slice is read
  for (GradientCall& call : calls) {
    call.grad_weight = pointer_of(found);
    launch(call, device);
  }
  return found;
}

// The gradient of x as [batch * in_channels, depth, height, width], and, where `both`, the weight's as above.
inline std::vector<Tensor> gradients_of_volumes(const DepthGradientInputs& in, bool both) {
  const std::vector<Tensor> nothing(both ? 2 : 1, declined(in));
  if (!in.fits() || !in.can_count_images()) return nothing;
  const Device device = device_of(in.of.x);
  const int32_t dtype = torch_dtype_of(in.of.x);
  std::vector<GradientCall> calls = {in.volumes()};
  GradientCall& call = calls[0];
  call.grad_x = pointer_of(in.of.x);  // is there, no more is asked
  if (both) call.grad_weight = call.grad_x;
  if (!all_served(calls, device)) return nothing;
  const auto x = in.of.x.sizes(), kernel = in.of.weight.sizes();
  const int64_t sizes[] = {x[0] * x[1], x[2], x[3], x[4]};
  const int64_t weight_sizes[] = {kernel[0] * kernel[1], kernel[2], kernel[3], kernel[4]};
  const Tensor weight = dense(in.of.weight);
  std::vector<Tensor> found = {allocate(sizes, 4, dtype, device)};
  call.conv.weight = pointer_of(weight);
  call.grad_x = pointer_of(found[0]);
  if (both) {
    found.push_back(allocate(weight_sizes, 4, dtype, device));
    call.grad_weight = pointer_of(found[1]);
  }
  launch(call, device);
  return found;
}

inline void run_depth_weight_gradient(StableIValue* values, uint64_t, uint64_t) {
  Stack stack(values);
  const DepthGradientInputs inputs(stack);
  stack.give(weight_gradient_of_volumes(inputs));
}

inline void run_depth_input_gradient(StableIValue* values, uint64_t, uint64_t) {
  Stack stack(values);
  const DepthGradientInputs inputs(stack);
  stack.give(gradients_of_volumes(inputs, false)[0]);
}

inline void run_depth_gradients(StableIValue* values, uint64_t, uint64_t) {
  Stack stack(values);
  const DepthGradientInputs inputs(stack);
  const std::vector<Tensor> found = gradients_of_volumes(inputs, true);
  stack.give(found[0], found[1]);
}

}  // namespace binding
}  // namespace tconv

#define TCONV_IMPLEMENT_DEPTH_GRADIENTS(DEVICE)                                        \
  TCONV_LIBRARY_IMPL(TCONV_NAMESPACE, DEVICE, library) {                               \
    library.impl("depth_weight_gradient", &tconv::binding::run_depth_weight_gradient); \
    library.impl("depth_input_gradient", &tconv::binding::run_depth_input_gradient);   \
    library.impl("depth_gradients", &tconv::binding::run_depth_gradients);             \
  }
#define TCONV_REGISTER_DEPTH_GRADIENTS                                                       \
  TCONV_DEPTH_LIBRARY(TCONV_NAMESPACE, library) {                                            \
    library.def("depth_weight_gradient(Tensor grad, " TCONV_DEPTH_SCHEMA ") -> Tensor");     \
    library.def("depth_input_gradient(Tensor grad, " TCONV_DEPTH_SCHEMA ") -> Tensor");      \
    library.def("depth_gradients(Tensor grad, " TCONV_DEPTH_SCHEMA ") -> (Tensor, Tensor)"); \
  }                                                                                          \
  TCONV_IMPLEMENT_DEPTH_GRADIENTS(CPU)                                                       \
  TCONV_IMPLEMENT_DEPTH_GRADIENTS(CUDA)
