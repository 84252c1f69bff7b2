// The operators of the library of BatchNorm alone, in fp32.
//   normalise: value [batch, channels, ...] by its statistics. running_mean and running_var, where given, move towards
//   them by momentum or, where num_batches is given, by 1 / num_batches. softmax: over rows of an image, of 64, 128,
//   256 or 512 values that begin at 16 bytes.
//   backward: the gradients of value, weight and bias, those of the last two where they are wanted. The statistics are
//   value's, which is read anyway.
#include "../batch_norm_call.h"
#include "cuda_half.h"

TCONV_DECLARE_CUDA_HALF(BatchNormCall)

#include "run.h"
#include "running_statistics.h"
#include "stack.h"

namespace tconv {
namespace binding {

// What both operators are given: checked, and made contiguous.
struct BatchNormOperands {
  Tensor value;
  OptionalTensor weight, bias;

  void check() {
    if (value.dim() < 3) refuse("value must have 3 dimensions or more, got ", shape_text(value));
    if (value.numel() == 0 || value.numel() < 2 * value.size(1))
      refuse_value("batch_norm: expected more than 1 value per channel when training, got shape ", shape_text(value));
    check_channel_vector("weight", weight, value.size(1), value);
    check_channel_vector("bias", bias, value.size(1), value);
    value = dense(value), weight = dense(weight), bias = dense(bias);
  }

  Tensor allocate_value() const {
    return allocate(value.sizes().data(), value.dim(), torch_dtype_of(value), device_of(value));
  }

  BatchNormCall call(double eps) const {
    BatchNormCall made{};
    ConvTransposeLayer none{};
    none.groups = 1;  // what counts threads divides by it
    made.conv = make_call(none, kernel_dtype(torch_dtype_of(value)), false);
    made.norm.use_batch_stats = 1, made.norm.eps = eps;
    made.norm.weight = pointer_of(weight), made.norm.bias = pointer_of(bias);
    made.value = pointer_of(value);
    made.batch = value.size(0), made.channels = value.size(1), made.plane = 1;
    for (int64_t axis = 2; axis < value.dim(); ++axis) made.plane *= value.size(axis);
    return made;
  }
};

void normalise(StableIValue* values, uint64_t, uint64_t) {
  Stack stack(values);
  BatchNormOperands in{stack.tensor(), stack.optional_tensor(), stack.optional_tensor()};
  OptionalTensor running_mean = stack.optional_tensor(), running_var = stack.optional_tensor();
  OptionalTensor num_batches = stack.optional_tensor();
  const double momentum = stack.number(), eps = stack.number();
  const bool softmax = stack.boolean();

  in.check();
  check_written("running_mean", running_mean, in.value.size(1), in.value);
  check_written("running_var", running_var, in.value.size(1), in.value);
  const int64_t width = in.value.size(in.value.dim() - 1);
  if (softmax && (in.value.dim() != 4 || (width != 64 && width != 128 && width != 256 && width != 512)))
    refuse("softmax must be over rows of 64, 128, 256 or 512 values, got ", shape_text(in.value));
  const Tensor result = in.allocate_value();
  BatchNormCall call = in.call(eps);
  call.norm.updated = {pointer_of(running_mean), pointer_of(running_var), momentum,
                       static_cast<const int64_t*>(pointer_of(num_batches))};
  call.result = pointer_of(result);
  call.softmax_width = softmax ? width : 0;
  launch(call, device_of(in.value));
  stack.give(result);
}

void backward(StableIValue* values, uint64_t, uint64_t) {
  Stack stack(values);
  Tensor grad = stack.tensor();
  BatchNormOperands in{stack.tensor(), stack.optional_tensor(), {}};
  const double eps = stack.number();
  const bool need_weight = stack.boolean(), need_bias = stack.boolean();

  in.check();
  check_same_kind("grad", grad, in.value);
  if (shape_text(grad) != shape_text(in.value))
    refuse("grad must have the shape of value, ", shape_text(in.value), ", got ", shape_text(grad));
  grad = dense(grad);
  const auto channel_values = [&](bool wanted) {
    const int64_t count = wanted ? in.value.size(1) : 0;
    return allocate(&count, 1, torch_dtype_of(in.value), device_of(in.value));
  };
  const Tensor grad_value = in.allocate_value();
  const Tensor grad_weight = channel_values(need_weight), grad_bias = channel_values(need_bias);
  BatchNormCall call = in.call(eps);
  call.grad = pointer_of(grad), call.grad_value = pointer_of(grad_value);
  if (need_weight) call.grad_weight = pointer_of(grad_weight);
  if (need_bias) call.grad_bias = pointer_of(grad_bias);
  launch(call, device_of(in.value));
  stack.give(grad_value, grad_weight, grad_bias);
}

}  // namespace binding
}  // namespace tconv

TCONV_LIBRARY(TCONV_NAMESPACE, library) {
  library.def(
      "normalise(Tensor value, Tensor? weight, Tensor? bias, Tensor(a!)? running_mean, Tensor(b!)? running_var, "
      "Tensor? num_batches, float momentum, float eps, bool softmax) -> Tensor");
  library.def(
      "backward(Tensor grad, Tensor value, Tensor? weight, float eps, bool need_weight, bool need_bias) "
      "-> (Tensor, Tensor, Tensor)");
}
TCONV_LIBRARY_IMPL(TCONV_NAMESPACE, CPU, library) {
  library.impl("normalise", &tconv::binding::normalise), library.impl("backward", &tconv::binding::backward);
}
TCONV_LIBRARY_IMPL(TCONV_NAMESPACE, CUDA, library) {
  library.impl("normalise", &tconv::binding::normalise), library.impl("backward", &tconv::binding::backward);
}
