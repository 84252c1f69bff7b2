// The operator of pattern 3: transposed convolution, BatchNorm2d, activation, MaxPool2d, GroupNorm.
#include "cuda_half.h"

TCONV_DECLARE_CUDA_HALF(ConvBatchNormPoolGroupNormCall)

#include "conv_inputs.h"
#include "pool_arguments.h"

namespace tconv {
namespace binding {

// A buffer that the kernels write: of the type in which statistics are kept.
inline void* writable(const char* name, const OptionalTensor& buffer, const ConvInputs& inputs) {
  if (!buffer) return nullptr;
  const int64_t wanted = inputs.computed_dtype == kFloat64 ? kFloat64 : kFloat32;
  if (kernel_dtype(torch_dtype_of(*buffer)) != wanted || !buffer->is_contiguous() || buffer->dim() != 1 ||
      buffer->size(0) != inputs.problem.out_channels || !(device_of(*buffer) == inputs.device))
    refuse(name, " must be a contiguous tensor of shape (", inputs.problem.out_channels, ",) in ",
           dtype_name(torch_dtype(wanted)), " on ", inputs.device.name(), ", got ", shape_text(*buffer), " in ",
           dtype_name(torch_dtype_of(*buffer)), " on ", device_of(*buffer).name());
  return buffer->data_ptr();
}

// use_batch_stats: running_mean and running_var, where given, move towards the batch's by momentum, or, where num_batches is
// given, by 1 / num_batches; batch_mean and batch_var receive the batch's mean and biased variance. Else they are read.
Tensor run(const Tensor& x, const Tensor& weight, const OptionalTensor& bias, int64_t stride_h, int64_t stride_w,
           int64_t padding_h, int64_t padding_w, int64_t output_padding_h, int64_t output_padding_w, int64_t dilation_h,
           int64_t dilation_w, int64_t groups, bool tf32, const OptionalTensor& batch_norm_weight,
           const OptionalTensor& batch_norm_bias, const OptionalTensor& running_mean, const OptionalTensor& running_var,
           const OptionalTensor& num_batches, double momentum, const OptionalTensor& batch_mean,
           const OptionalTensor& batch_var, bool use_batch_stats, double batch_norm_eps, int64_t pool_kernel_h,
           int64_t pool_kernel_w, int64_t pool_stride_h, int64_t pool_stride_w, int64_t pool_padding_h,
           int64_t pool_padding_w, int64_t pool_dilation_h, int64_t pool_dilation_w, bool ceil_mode, int64_t num_groups,
           const OptionalTensor& norm_weight, const OptionalTensor& norm_bias, double norm_eps) {
  ConvInputs inputs(x, weight, bias,
                    {{stride_h, stride_w}, {padding_h, padding_w}, {output_padding_h, output_padding_w},
                     {dilation_h, dilation_w}, groups});
  const ConvTransposeProblem& p = inputs.problem;
  int64_t sizes[4];
  size_t dim = 0;
  inputs.shape(p.out_h, p.out_w, sizes, &dim);
  check_batch_norm(sizes, dim, use_batch_stats, batch_norm_weight, batch_norm_bias, running_mean, running_var, x);
  const Pool pool = {{pool_kernel_h, pool_kernel_w}, {pool_stride_h, pool_stride_w}, {pool_padding_h, pool_padding_w},
                     {pool_dilation_h, pool_dilation_w}, ceil_mode};
  const Pair pooled = pooled_image(p.out_h, p.out_w, pool);
  inputs.shape(pooled.h, pooled.w, sizes, &dim);
  check_group_norm(sizes, dim, num_groups, norm_weight, norm_bias, x);

  const Tensor out = inputs.allocate_output(pooled.h, pooled.w);
  if (p.batch == 0) return inputs.finished(out);
  const OptionalTensor scale = inputs.readable(batch_norm_weight), shift = inputs.readable(batch_norm_bias);
  const OptionalTensor group_scale = inputs.readable(norm_weight), group_shift = inputs.readable(norm_bias);
  ConvBatchNormPoolGroupNormCall call{};
  call.conv = inputs.prepare(out, tf32);
  BatchNormPoolArgs& norm = call.batch_norm_pool;
  norm.use_batch_stats = use_batch_stats;
  norm.eps = batch_norm_eps;
  norm.weight = pointer_of(scale), norm.bias = pointer_of(shift);
  OptionalTensor mean, var;
  if (use_batch_stats) {
    norm.batch_mean = writable("batch_mean", batch_mean, inputs), norm.batch_var = writable("batch_var", batch_var, inputs);
    norm.updated.mean = writable("running_mean", running_mean, inputs);
    norm.updated.var = writable("running_var", running_var, inputs);
    norm.updated.momentum = momentum;
    norm.updated.num_batches = static_cast<const int64_t*>(pointer_of(num_batches));
  } else {
    const int64_t kept = inputs.computed_dtype == kFloat64 ? kFloat64 : kFloat32;
    mean = dense(converted(running_mean, kept)), var = dense(converted(running_var, kept));
    norm.running_mean = pointer_of(mean), norm.running_var = pointer_of(var);
  }
  norm.pool_kernel_h = pool_kernel_h, norm.pool_kernel_w = pool_kernel_w;
  norm.pool_stride_h = pool_stride_h, norm.pool_stride_w = pool_stride_w;
  norm.pool_padding_h = pool_padding_h, norm.pool_padding_w = pool_padding_w;
  norm.pool_dilation_h = pool_dilation_h, norm.pool_dilation_w = pool_dilation_w;
  norm.pooled_h = pooled.h, norm.pooled_w = pooled.w;
  call.group_norm = {num_groups, norm_eps, pointer_of(group_scale), pointer_of(group_shift)};
  launch(call, inputs.device);
  return inputs.finished(out);
}

}  // namespace binding
}  // namespace tconv

TCONV_LIBRARY(TCONV_NAMESPACE, library) {
  library.def(
      "run(Tensor x, Tensor weight, Tensor? bias, int stride_h, int stride_w, int padding_h, int padding_w, "
      "int output_padding_h, int output_padding_w, int dilation_h, int dilation_w, int groups, bool tf32, "
      "Tensor? batch_norm_weight, Tensor? batch_norm_bias, Tensor(a!)? running_mean, Tensor(b!)? running_var, "
      "Tensor? num_batches, float momentum, Tensor(c!)? batch_mean, Tensor(d!)? batch_var, bool use_batch_stats, "
      "float batch_norm_eps, int pool_kernel_h, int pool_kernel_w, int pool_stride_h, int pool_stride_w, "
      "int pool_padding_h, int pool_padding_w, int pool_dilation_h, int pool_dilation_w, bool ceil_mode, int num_groups, "
      "Tensor? norm_weight, Tensor? norm_bias, float norm_eps) -> Tensor");
}

TCONV_LIBRARY_IMPL(TCONV_NAMESPACE, CPU, library) { library.impl("run", TORCH_BOX(&tconv::binding::run)); }
TCONV_LIBRARY_IMPL(TCONV_NAMESPACE, CUDA, library) { library.impl("run", TORCH_BOX(&tconv::binding::run)); }
