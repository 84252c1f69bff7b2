// Exported functions of the library of the gradients through tails.
#include "tail_gradient.cuh"

TCONV_EXPORT int64_t tconv_cuda_workspace_bytes(const tconv::TailGradientCall* call) {
  return tconv::cuda::tail_gradient_workspace_bytes(*call);
}

TCONV_EXPORT int64_t tconv_cuda_run(const tconv::TailGradientCall* call) {
  return tconv::cuda::launch_tail_gradient(*call);
}

TCONV_EXPORT const char* tconv_cuda_error_string(int64_t code) { return tconv::cuda::error_string(code); }
