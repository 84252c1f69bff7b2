// The operator of the library of BatchNorm alone, in fp32: value [batch, channels, height, width], normalised by its
// statistics. running_mean and running_var, where given, move towards them by momentum or, where num_batches is given,
// by 1 / num_batches. softmax: over rows of it, of 64, 128, 256 or 512 values that begin at 16 bytes.
#include "../batch_norm_call.h"
#include "cuda_half.h"

TCONV_DECLARE_CUDA_HALF(BatchNormCall)

#include "run.h"
#include "stack.h"

namespace tconv {
namespace binding {

void check_written(const char* name, const OptionalTensor& given, int64_t channels, const Tensor& value) {
  check_channel_vector(name, given, channels, value);
  if (given && !given->is_contiguous()) refuse(name, " must be contiguous to be written");
}

void normalise(StableIValue* values, uint64_t, uint64_t) {
  Stack stack(values);
  Tensor value = stack.tensor();
  OptionalTensor weight = stack.optional_tensor(), bias = stack.optional_tensor();
  OptionalTensor running_mean = stack.optional_tensor(), running_var = stack.optional_tensor();
  OptionalTensor num_batches = stack.optional_tensor();
  const double momentum = stack.number(), eps = stack.number();
  const bool softmax = stack.boolean();

  if (value.dim() != 4) refuse("value must have 4 dimensions, got ", shape_text(value));
  const auto sizes = value.sizes();
  const int64_t channels = sizes[1], plane = sizes[2] * sizes[3];
  if (sizes[0] * plane < 2)
    refuse_value("batch_norm: expected more than 1 value per channel when training, got shape ", shape_text(value));
  const Device device = device_of(value);
  const int32_t dtype = torch_dtype_of(value);
  check_channel_vector("weight", weight, channels, value), check_channel_vector("bias", bias, channels, value);
  check_written("running_mean", running_mean, channels, value),
      check_written("running_var", running_var, channels, value);
  if (softmax && sizes[3] != 64 && sizes[3] != 128 && sizes[3] != 256 && sizes[3] != 512)
    refuse("softmax must be over rows of 64, 128, 256 or 512 values, got ", shape_text(value));
  value = dense(value), weight = dense(weight), bias = dense(bias);
  const Tensor result = allocate(sizes.data(), 4, dtype, device);

  BatchNormCall call{};
  ConvTransposeLayer none{};
  none.groups = 1;  // what counts threads divides by it
  call.conv = make_call(none, kernel_dtype(dtype), false);
  call.norm.use_batch_stats = 1, call.norm.eps = eps;
  call.norm.weight = pointer_of(weight), call.norm.bias = pointer_of(bias);
  call.norm.updated = {pointer_of(running_mean), pointer_of(running_var), momentum,
                       static_cast<const int64_t*>(pointer_of(num_batches))};
  call.value = pointer_of(value), call.result = pointer_of(result);
  call.batch = sizes[0], call.channels = channels, call.plane = plane;
  call.softmax_width = softmax ? sizes[3] : 0;
  launch(call, device);
  stack.give(result);
}

}  // namespace binding
}  // namespace tconv

TCONV_LIBRARY(TCONV_NAMESPACE, library) {
  library.def(
      "normalise(Tensor value, Tensor? weight, Tensor? bias, Tensor(a!)? running_mean, Tensor(b!)? running_var, "
      "Tensor? num_batches, float momentum, float eps, bool softmax) -> Tensor");
}
TCONV_LIBRARY_IMPL(TCONV_NAMESPACE, CPU, library) { library.impl("normalise", &tconv::binding::normalise); }
TCONV_LIBRARY_IMPL(TCONV_NAMESPACE, CUDA, library) { library.impl("normalise", &tconv::binding::normalise); }
