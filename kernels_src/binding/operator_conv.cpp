// The operator of pattern 1: transposed convolution and the element-wise operations after it.
#include "cuda_half.h"

TCONV_DECLARE_CUDA_HALF(ConvOnlyCall)

#include "conv_inputs.h"
#ifdef TCONV_WALKS_DEPTH
#include "operator_depth.h"
#endif
#ifdef TCONV_KEEPS_MASK
#include "operator_depth_mask.h"
#endif
#ifdef TCONV_REDUCES_CHANNELS
#include "operator_extremum.h"
#endif

namespace tconv {
namespace binding {

void run(StableIValue* values, uint64_t, uint64_t) {
  Stack stack(values);
  ConvInputs inputs(stack);
  inputs.take_vectors(stack);

  inputs.check();
  const Tensor out = inputs.allocate_output(inputs.layer.out_h, inputs.layer.out_w);
  if (inputs.layer.batch > 0) {
    ConvOnlyCall call{inputs.prepare(out)};
    launch(call, inputs.device);
  }
  stack.give(inputs.finished(out));
}

}  // namespace binding
}  // namespace tconv

#ifdef TCONV_WALKS_DEPTH
TCONV_REGISTER_DEPTH(tconv::ConvOnlyCall)
#endif
#ifdef TCONV_KEEPS_MASK
TCONV_REGISTER_DEPTH_MASK
#endif
#ifdef TCONV_REDUCES_CHANNELS
TCONV_REGISTER_EXTREMUM
#endif
TCONV_REGISTER(TCONV_RUN "(" TCONV_CONV_SCHEMA ", " TCONV_VECTORS_SCHEMA ") -> Tensor")
