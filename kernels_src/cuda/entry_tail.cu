// Exported functions of the library of tails.
#include "tail.cuh"

TCONV_EXPORT int64_t tconv_cuda_workspace_bytes(const tconv::TailCall* call) {
  return tconv::cuda::tail_workspace_bytes(*call);
}

TCONV_EXPORT int64_t tconv_cuda_run(const tconv::TailCall* call) { return tconv::cuda::launch_tail(*call); }

TCONV_EXPORT const char* tconv_cuda_error_string(int64_t code) { return tconv::cuda::error_string(code); }
