// The operator of pattern 3: transposed convolution, BatchNorm2d, activation, MaxPool2d, GroupNorm.
#include "cuda_half.h"

TCONV_DECLARE_CUDA_HALF(ConvBatchNormPoolGroupNormCall)

#include "batch_norm_inputs.h"
#include "group_norm_inputs.h"
#include "pool_arguments.h"

namespace tconv {
namespace binding {

void run(StableIValue* values, uint64_t, uint64_t) {
  Stack stack(values);
  ConvInputs inputs(stack);
  BatchNormInputs batch_norm(stack);
  const Pool pool = take_pool(stack);
  GroupNormInputs group_norm(stack);

  inputs.check();
  const ConvTransposeLayer& p = inputs.layer;
  batch_norm.check(inputs);
  const Pair pooled = pooled_image(p.out_h, p.out_w, pool);
  group_norm.check(inputs, pooled.h, pooled.w);
  const Tensor out = inputs.allocate_output(pooled.h, pooled.w);
  if (p.batch > 0) {
    ConvBatchNormPoolGroupNormCall call{inputs.prepare(out), batch_norm.prepare(inputs), group_norm.prepare(inputs)};
    set_pool(call.batch_norm_pool, pool, pooled);
    launch(call, inputs.device);
  }
  stack.give(inputs.finished(out));
}

}  // namespace binding
}  // namespace tconv

TCONV_REGISTER(TCONV_RUN "(" TCONV_CONV_SCHEMA ", " TCONV_BATCH_NORM_SCHEMA ", " TCONV_POOL_SCHEMA
                         ", " TCONV_GROUP_NORM_SCHEMA ") -> Tensor")
