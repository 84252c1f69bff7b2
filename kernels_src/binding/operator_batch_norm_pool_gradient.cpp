// The operator of the library of the gradients through BatchNorm, activation, max-pool (windows that do not overlap,
// without padding and dilation) and GroupNorm: of `value`, what BatchNorm read; of both norms' weights and biases, and
// the first one's sums per channel, where they are wanted. pad_rows: the first one's rows in whole vectors, zeros
// behind (padded_rows.h). chain: the activation's number (generated_gradient.h).
#include "../batch_norm_pool_gradient_call.h"
#include "../padded_rows.h"
#include "cuda_half.h"

TCONV_DECLARE_CUDA_HALF(BatchNormPoolGradientCall)

#include "run.h"
#include "stack.h"

namespace tconv {
namespace binding {

void backward(StableIValue* values, uint64_t, uint64_t) {
  Stack stack(values);
  Tensor grad = stack.tensor(), value = stack.tensor();
  OptionalTensor weight = stack.optional_tensor(), bias = stack.optional_tensor();
  OptionalTensor mean = stack.optional_tensor(), variance = stack.optional_tensor();
  const bool use_batch_stats = stack.boolean();
  const double eps = stack.number();
  const int64_t kernel_h = stack.integer(), kernel_w = stack.integer();
  const int64_t stride_h = stack.integer(), stride_w = stack.integer();
  OptionalTensor group_weight = stack.optional_tensor();
  const int64_t num_groups = stack.integer();
  const double group_eps = stack.number();
  const bool need_weight = stack.boolean(), need_bias = stack.boolean();
  const bool need_group_weight = stack.boolean(), need_group_bias = stack.boolean(), need_sums = stack.boolean();
  const bool pad_rows = stack.boolean();
  const int64_t chain = stack.integer();

  if (value.dim() != 4) refuse("value must have 4 dimensions, got ", shape_text(value));
  const auto sizes = value.sizes();
  check_same_kind("grad", grad, value);
  const auto fits = [](int64_t pooled, int64_t size, int64_t kernel, int64_t stride) {
    return kernel > 0 && stride >= kernel && pooled > 0 && (pooled - 1) * stride < size;
  };
  if (grad.dim() != 4 || grad.sizes()[0] != sizes[0] || grad.sizes()[1] != sizes[1] ||
      !fits(grad.sizes()[2], sizes[2], kernel_h, stride_h) || !fits(grad.sizes()[3], sizes[3], kernel_w, stride_w) ||
      kernel_h * kernel_w > 256)
    refuse("grad of shape ", shape_text(grad), " is not that of windows of ", Pair{kernel_h, kernel_w}, ", strides ",
           Pair{stride_h, stride_w}, ", over ", shape_text(value), " that do not overlap and have at most 256 values");
  if (num_groups <= 0 || sizes[1] % num_groups != 0)
    refuse("num_groups must divide ", sizes[1], " channels, got ", num_groups);
  check_channel_vector("weight", weight, sizes[1], value), check_channel_vector("bias", bias, sizes[1], value);
  check_channel_vector("group_weight", group_weight, sizes[1], value);
  const Device device = device_of(value);
  const int32_t dtype = torch_dtype_of(value);
  const int64_t statistics = kernel_dtype(dtype) == kFloat64 ? kFloat64 : kFloat32;
  const auto of_statistics = [&](const char* name, const OptionalTensor& given) {
    if (use_batch_stats && !given) return OptionalTensor();
    if (!given || given->dim() != 1 || given->size(0) != sizes[1] || !(device_of(*given) == device))
      refuse(name, " must have shape (", sizes[1], ",) on ", device.name(), ", got ",
             given ? shape_text(*given) : "None, which only batch statistics may be");
    return dense(converted(given, statistics));
  };
  mean = of_statistics("mean", mean), variance = of_statistics("variance", variance);
  grad = dense(grad), value = dense(value);
  weight = dense(weight), bias = dense(bias), group_weight = dense(group_weight);

  const int64_t row_columns = pad_rows ? padded_columns(sizes[3]) : sizes[3];
  const int64_t of_grad_value[] = {sizes[0], sizes[1], sizes[2], row_columns};
  const Tensor grad_value = allocate(of_grad_value, 4, dtype, device);
  const auto channel_values = [&](bool wanted) {
    const int64_t count = wanted ? sizes[1] : 0;
    return allocate(&count, 1, dtype, device);
  };
  const Tensor grad_weight = channel_values(need_weight), grad_bias = channel_values(need_bias);
  const Tensor grad_group_weight = channel_values(need_group_weight), grad_group_bias = channel_values(need_group_bias);
  const Tensor grad_sums = channel_values(need_sums);
  const auto wanted = [](const Tensor& of, bool need) { return need ? pointer_of(of) : nullptr; };

  BatchNormPoolGradientCall call{};
  ConvTransposeLayer none{};
  none.groups = 1;  // what counts threads divides by it
  call.conv = make_call(none, kernel_dtype(dtype), false);
  call.chain = chain;
  BatchNormPoolArgs& norm = call.batch_norm_pool;
  norm.use_batch_stats = use_batch_stats, norm.eps = eps;
  norm.weight = pointer_of(weight), norm.bias = pointer_of(bias);
  norm.running_mean = pointer_of(mean), norm.running_var = pointer_of(variance);
  norm.pool_kernel_h = kernel_h, norm.pool_kernel_w = kernel_w;
  norm.pool_stride_h = stride_h, norm.pool_stride_w = stride_w;
  norm.pooled_h = grad.sizes()[2], norm.pooled_w = grad.sizes()[3];
  call.group_norm = {num_groups, group_eps, pointer_of(group_weight), nullptr};
  call.grad = pointer_of(grad), call.value = pointer_of(value), call.grad_value = pointer_of(grad_value);
  call.batch = sizes[0], call.channels = sizes[1], call.height = sizes[2], call.width = sizes[3];
  call.row_columns = row_columns;
  call.grad_weight = wanted(grad_weight, need_weight), call.grad_bias = wanted(grad_bias, need_bias);
  call.grad_group_weight = wanted(grad_group_weight, need_group_weight);
  call.grad_group_bias = wanted(grad_group_bias, need_group_bias);
  call.grad_sums = wanted(grad_sums, need_sums);
  if (value.numel() > 0) launch(call, device);
  stack.give(grad_value, grad_weight, grad_bias, grad_group_weight, grad_group_bias, grad_sums);
}

}  // namespace binding
}  // namespace tconv

TCONV_LIBRARY(TCONV_NAMESPACE, library) {
  library.def(
      "backward(Tensor grad, Tensor value, Tensor? weight, Tensor? bias, Tensor? mean, Tensor? variance, "
      "bool use_batch_stats, float eps, int kernel_h, int kernel_w, int stride_h, int stride_w, Tensor? group_weight, "
      "int num_groups, float group_eps, bool need_weight, bool need_bias, bool need_group_weight, "
      "bool need_group_bias, bool need_sums, bool pad_rows, int chain) "
      "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)");
}
TCONV_LIBRARY_IMPL(TCONV_NAMESPACE, CPU, library) { library.impl("backward", &tconv::binding::backward); }
TCONV_LIBRARY_IMPL(TCONV_NAMESPACE, CUDA, library) { library.impl("backward", &tconv::binding::backward); }
