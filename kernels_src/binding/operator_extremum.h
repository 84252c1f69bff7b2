// The operator of pattern 1 with a minimum or maximum over channels behind it, where the Hopper kernel runs: an empty
// result says that it declines.
#pragma once

#include "conv_inputs.h"

namespace tconv {
namespace binding {

// Does the library do the call? It says so without a workspace.
inline bool serves(const ConvOnlyCall& call, const Device& device) {
#if defined(TCONV_WITH_CUDA)
  const CurrentDevice current(device);
  return tconv_cuda_workspace_bytes(&call) >= 0;
#else
  (void)device;
  return tconv_cpu_workspace_bytes(&call) >= 0;
#endif
}

inline void run_extremum(StableIValue* values, uint64_t, uint64_t) {
  Stack stack(values);
  ConvInputs inputs(stack);
  const int64_t extremum = stack.integer();
  inputs.take_vectors(stack);

  inputs.check();
  const ConvTransposeLayer& p = inputs.layer;
  ConvOnlyCall call{};
  bool served = false;
  if (!inputs.device.is_cpu() && inputs.x.dim() == 4 && p.batch > 0 && !inputs.channels_last) {
    call.conv = inputs.prepare(inputs.x);  // any pointer: there is no result yet
    call.extremum = extremum;
    served = serves(call, inputs.device);
  }
  const int64_t nothing[] = {0}, sizes[] = {p.batch, 1, p.out_h, p.out_w};
  const Tensor out =
      served ? allocate(sizes, 4, inputs.dtype, inputs.device) : allocate(nothing, 1, inputs.dtype, inputs.device);
  if (served) {
    call.conv.out = pointer_of(out);
    launch(call, inputs.device);
  }
  stack.give(out);
}

}  // namespace binding
}  // namespace tconv

#if defined(TCONV_CALL)  // one of several operators of a library
#define TCONV_RUN_EXTREMUM "extremum_" TCONV_TEXT(TCONV_CALL)
#else
#define TCONV_RUN_EXTREMUM "extremum"
#endif
#define TCONV_EXTREMUM_SCHEMA TCONV_CONV_SCHEMA ", int extremum, " TCONV_VECTORS_SCHEMA
// STABLE_TORCH_LIBRARY_FRAGMENT pastes its argument: this expands it first.
#define TCONV_EXTREMUM_LIBRARY(NAMESPACE, M) STABLE_TORCH_LIBRARY_FRAGMENT(NAMESPACE, M)
#define TCONV_IMPLEMENT_EXTREMUM(DEVICE)                             \
  TCONV_LIBRARY_IMPL(TCONV_NAMESPACE, DEVICE, library) {             \
    library.impl(TCONV_RUN_EXTREMUM, &tconv::binding::run_extremum); \
  }
#define TCONV_REGISTER_EXTREMUM                                              \
  TCONV_EXTREMUM_LIBRARY(TCONV_NAMESPACE, library) {                         \
    library.def(TCONV_RUN_EXTREMUM "(" TCONV_EXTREMUM_SCHEMA ") -> Tensor"); \
  }                                                                          \
  TCONV_IMPLEMENT_EXTREMUM(CPU)                                              \
  TCONV_IMPLEMENT_EXTREMUM(CUDA)
