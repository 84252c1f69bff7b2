// The operators of the library of GroupNorm alone: value [batch, channels, ...] normalised, contiguous; and the
// gradients of value, weight and bias, those of the last two where they are wanted.
#include "../group_norm_call.h"
#include "cuda_half.h"

TCONV_DECLARE_CUDA_HALF(GroupNormCall)

#include "run.h"
#include "stack.h"

namespace tconv {
namespace binding {

// What both operators are given: checked, and made contiguous.
struct GroupNormOperands {
  Tensor value;
  OptionalTensor weight, bias;
  int64_t num_groups;
  double eps;

  void check() {
    if (value.dim() < 2) refuse("value must have 2 dimensions or more, got ", shape_text(value));
    const int64_t channels = value.size(1);
    if (num_groups < 1 || channels % num_groups != 0)
      refuse("num_groups must divide ", channels, " channels, got ", num_groups);
    check_channel_vector("weight", weight, channels, value), check_channel_vector("bias", bias, channels, value);
    value = dense(value), weight = dense(weight), bias = dense(bias);
  }

  Tensor allocate_value() const {
    return allocate(value.sizes().data(), value.dim(), torch_dtype_of(value), device_of(value));
  }

  GroupNormCall call() const {
    GroupNormCall made{};
    ConvTransposeLayer none{};
    none.groups = 1;  // what counts threads divides by it
    made.conv = make_call(none, kernel_dtype(torch_dtype_of(value)), false);
    made.norm = {num_groups, eps, pointer_of(weight), pointer_of(bias)};
    made.value = pointer_of(value);
    made.batch = value.size(0), made.channels = value.size(1), made.plane = 1;
    for (int64_t axis = 2; axis < value.dim(); ++axis) made.plane *= value.size(axis);
    return made;
  }
};

void normalise(StableIValue* values, uint64_t, uint64_t) {
  Stack stack(values);
  GroupNormOperands in{stack.tensor(), stack.optional_tensor(), stack.optional_tensor(), stack.integer(),
                       stack.number()};
  in.check();
  const Tensor result = in.allocate_value();
  GroupNormCall call = in.call();
  call.result = pointer_of(result);
  if (result.numel() > 0) launch(call, device_of(in.value));
  stack.give(result);
}

void backward(StableIValue* values, uint64_t, uint64_t) {
  Stack stack(values);
  Tensor grad = stack.tensor();
  GroupNormOperands in{stack.tensor(), stack.optional_tensor(), {}, stack.integer(), stack.number()};
  const bool need_weight = stack.boolean(), need_bias = stack.boolean();
  in.check();
  check_same_kind("grad", grad, in.value);
  if (shape_text(grad) != shape_text(in.value))
    refuse("grad must have the shape of value, ", shape_text(in.value), ", got ", shape_text(grad));
  if (in.value.numel() == 0) refuse("value must not be empty, got ", shape_text(in.value));
  grad = dense(grad);
  const auto channel_values = [&](bool wanted) {
    const int64_t count = wanted ? in.value.size(1) : 0;
    return allocate(&count, 1, torch_dtype_of(in.value), device_of(in.value));
  };
  const Tensor grad_value = in.allocate_value();
  const Tensor grad_weight = channel_values(need_weight), grad_bias = channel_values(need_bias);
  GroupNormCall call = in.call();
  call.grad = pointer_of(grad), call.grad_value = pointer_of(grad_value);
  if (need_weight) call.grad_weight = pointer_of(grad_weight);
  if (need_bias) call.grad_bias = pointer_of(grad_bias);
  launch(call, device_of(in.value));
  stack.give(grad_value, grad_weight, grad_bias);
}

}  // namespace binding
}  // namespace tconv

TCONV_LIBRARY(TCONV_NAMESPACE, library) {
  library.def("normalise(Tensor value, Tensor? weight, Tensor? bias, int num_groups, float eps) -> Tensor");
  library.def(
      "backward(Tensor grad, Tensor value, Tensor? weight, int num_groups, float eps, bool need_weight, "
      "bool need_bias) -> (Tensor, Tensor, Tensor)");
}
TCONV_LIBRARY_IMPL(TCONV_NAMESPACE, CPU, library) {
  library.impl("normalise", &tconv::binding::normalise), library.impl("backward", &tconv::binding::backward);
}
TCONV_LIBRARY_IMPL(TCONV_NAMESPACE, CUDA, library) {
  library.impl("normalise", &tconv::binding::normalise), library.impl("backward", &tconv::binding::backward);
}
