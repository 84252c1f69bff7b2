// The operator of three dimensions that leaves a mask beside its result: a byte for each output, the answer of
// Epilogue::condition, on which alone the chain's gradient depends. Empty where the kernels do not leave it.
#pragma once

#include "operator_depth.h"

namespace tconv {
namespace binding {

inline void run_depth_masked(StableIValue* values, uint64_t, uint64_t) {
  Stack stack(values);
  DepthInputs inputs(stack);
  inputs.wants_mask = true;
  const Tensor out = convolve_volumes<ConvOnlyCall>(inputs);
  const int64_t nothing[] = {0};
  stack.give(out, inputs.mask ? *inputs.mask : allocate(nothing, 1, aoti_torch_dtype_uint8(), device_of(inputs.x)));
}

}  // namespace binding
}  // namespace tconv

#define TCONV_IMPLEMENT_DEPTH_MASK(DEVICE)                               \
  TCONV_LIBRARY_IMPL(TCONV_NAMESPACE, DEVICE, library) {                 \
    library.impl("run_depth_masked", &tconv::binding::run_depth_masked); \
  }
#define TCONV_REGISTER_DEPTH_MASK                                                \
  TCONV_DEPTH_LIBRARY(TCONV_NAMESPACE, library) {                                \
    library.def("run_depth_masked(" TCONV_DEPTH_SCHEMA ") -> (Tensor, Tensor)"); \
  }                                                                              \
  TCONV_IMPLEMENT_DEPTH_MASK(CPU)                                                \
  TCONV_IMPLEMENT_DEPTH_MASK(CUDA)
