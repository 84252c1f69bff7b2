// Exported functions of the library of BatchNorm alone, in fp32.
#include "batch_norm.cuh"

TCONV_EXPORT int64_t tconv_cuda_workspace_bytes(const tconv::BatchNormCall* call) {
  return tconv::cuda::batch_norm_workspace_bytes(*call);
}

TCONV_EXPORT int64_t tconv_cuda_run(const tconv::BatchNormCall* call) {
  if (call->conv.dtype != tconv::kFloat32) return tconv::kUnsupportedDType;
  if (call->conv.workspace_bytes < tconv::cuda::batch_norm_workspace_bytes(*call)) return tconv::kWorkspaceTooSmall;
  return tconv::cuda::launch_batch_norm(*call);
}

TCONV_EXPORT const char* tconv_cuda_error_string(int64_t code) { return tconv::cuda::error_string(code); }
