// The operator of pattern 3: transposed convolution, BatchNorm2d, activation, MaxPool2d, GroupNorm. conv_out, where
// given, is the convolution's output, which CUDA then does not compute again; a flat one, on a CPU, receives it.
#include <numeric>

#include "cuda_half.h"

TCONV_DECLARE_CUDA_HALF(ConvBatchNormPoolGroupNormCall)

#include "batch_norm_inputs.h"
#include "group_norm_inputs.h"
#include "pool_arguments.h"

namespace tconv {
namespace binding {

inline void check_conv_out(const OptionalTensor& value, const ConvInputs& inputs) {
  if (!value) return;
  int64_t shape[4];
  size_t dim = 0;
  inputs.shape(inputs.layer.out_h, inputs.layer.out_w, shape, &dim);
  const auto sizes = value->sizes();
  const bool is_it = sizes.size() == dim && std::equal(shape, shape + dim, sizes.begin());
  const int64_t count = std::accumulate(shape, shape + dim, int64_t{1}, std::multiplies<int64_t>());
  const bool receives_it = sizes.size() == 1 && sizes[0] == count && inputs.device.is_cpu() && value->is_contiguous();
  if (!(is_it || receives_it) || kernel_dtype(torch_dtype_of(*value)) != inputs.computed_dtype ||
      !(device_of(*value) == inputs.device))
    refuse("conv_out must be ", dtype_name(torch_dtype(inputs.computed_dtype)), " of shape ", tuple_text(shape, dim),
           " on ", inputs.device.name(), ", got ", dtype_name(torch_dtype_of(*value)), " of shape ", shape_text(*value),
           " on ", device_of(*value).name());
}

void run(StableIValue* values, uint64_t, uint64_t) {
  Stack stack(values);
  ConvInputs inputs(stack);
  BatchNormInputs batch_norm(stack);
  const Pool pool = take_pool(stack);
  GroupNormInputs group_norm(stack);
  OptionalTensor conv_out = stack.optional_tensor();

  inputs.check();
  const ConvTransposeLayer& p = inputs.layer;
  batch_norm.check(inputs);
  const Pair pooled = pooled_image(p.out_h, p.out_w, pool);
  group_norm.check(inputs, pooled.h, pooled.w);
  check_conv_out(conv_out, inputs);
  if (conv_out && inputs.device.is_cpu() && conv_out->sizes().size() > 1) conv_out = OptionalTensor();  // of no use
  conv_out = dense(conv_out);
  const Tensor out = inputs.allocate_output(pooled.h, pooled.w);
  if (p.batch > 0) {
    ConvBatchNormPoolGroupNormCall call{inputs.prepare(out), pointer_of(conv_out), batch_norm.prepare(inputs),
                                        group_norm.prepare(inputs)};
    set_pool(call.batch_norm_pool, pool, pooled);
    launch(call, inputs.device);
  }
  stack.give(inputs.finished(out));
}

}  // namespace binding
}  // namespace tconv

TCONV_REGISTER(TCONV_RUN "(" TCONV_CONV_SCHEMA ", " TCONV_BATCH_NORM_SCHEMA ", " TCONV_POOL_SCHEMA
                         ", " TCONV_GROUP_NORM_SCHEMA ", Tensor(e!)? conv_out) -> Tensor")
