// The one door to the transposed convolution on CPU.
#pragma once

#include "conv_transpose_plain.h"

namespace tconv {
namespace cpu {

// kOk, or why this call cannot run here. fp16 and bf16 arrive as fp32.
inline int64_t check_call(const ConvCall& call) {
  if (call.dtype != kFloat32 && call.dtype != kFloat64) return kUnsupportedDType;
  if (call.kernel_choice == kHopper) return kUnsupportedKernel;
  return kOk;
}

template <typename T>
inline int64_t conv_workspace_bytes(const ConvCall&) {
  return 0;
}

template <typename T>
inline int64_t conv_num_partials(const ConvCall& call) {
  return plain_num_partials<T>(call);
}

// Convolves outputs.num_samples samples. Returns a Status.
template <typename T>
inline int64_t run_conv_transpose(const ConvCall& call, const ConvOutputs<T>& outputs, void* workspace) {
  (void)workspace;
  run_conv_transpose_plain<T>(call, outputs);
  return kOk;
}

}  // namespace cpu
}  // namespace tconv
