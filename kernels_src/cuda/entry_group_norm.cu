// Exported functions of the library of GroupNorm alone.
#include "group_norm.cuh"

TCONV_EXPORT int64_t tconv_cuda_workspace_bytes(const tconv::GroupNormCall* call) {
  return tconv::cuda::group_norm_workspace_bytes(*call);
}

TCONV_EXPORT int64_t tconv_cuda_run(const tconv::GroupNormCall* call) {
  if (call->conv.workspace_bytes < tconv::cuda::group_norm_workspace_bytes(*call)) return tconv::kWorkspaceTooSmall;
  return tconv::cuda::launch_group_norm(*call);
}

TCONV_EXPORT const char* tconv_cuda_error_string(int64_t code) { return tconv::cuda::error_string(code); }
