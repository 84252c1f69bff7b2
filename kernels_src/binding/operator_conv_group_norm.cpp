// The operator of pattern 2: transposed convolution, element-wise operations, GroupNorm.
#define TCONV_MORE_KERNELS {"slices", kInSlices},

#include "cuda_half.h"

TCONV_DECLARE_CUDA_HALF(ConvGroupNormCall)

#include "conv_inputs.h"
#include "group_norm_inputs.h"

namespace tconv {
namespace binding {

void run(StableIValue* values, uint64_t, uint64_t) {
  Stack stack(values);
  ConvInputs inputs(stack);
  GroupNormInputs group_norm(stack);
  inputs.take_vectors(stack);

  inputs.check();
  group_norm.check(inputs, inputs.layer.out_h, inputs.layer.out_w);
  const Tensor out = inputs.allocate_output(inputs.layer.out_h, inputs.layer.out_w);
  if (inputs.layer.batch > 0) {
    ConvGroupNormCall call{inputs.prepare(out), group_norm.prepare(inputs)};
    launch(call, inputs.device);
  }
  stack.give(inputs.finished(out));
}

}  // namespace binding
}  // namespace tconv

TCONV_REGISTER(TCONV_RUN "(" TCONV_CONV_SCHEMA ", " TCONV_GROUP_NORM_SCHEMA ", " TCONV_VECTORS_SCHEMA ") -> Tensor")
