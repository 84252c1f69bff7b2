// Exported functions of the library of the gradients through BatchNorm, activation, max-pool and GroupNorm.
#include "batch_norm_pool_gradient.cuh"

TCONV_EXPORT int64_t tconv_cuda_workspace_bytes(const tconv::BatchNormPoolGradientCall* call) {
  return tconv::cuda::batch_norm_pool_gradient_workspace_bytes(*call);
}

TCONV_EXPORT int64_t tconv_cuda_run(const tconv::BatchNormPoolGradientCall* call) {
  if (call->conv.workspace_bytes < tconv::cuda::batch_norm_pool_gradient_workspace_bytes(*call))
    return tconv::kWorkspaceTooSmall;
  switch (call->conv.dtype) {
    case tconv::kFloat32: return tconv::cuda::launch_batch_norm_pool_gradient<float>(*call);
    case tconv::kFloat64: return tconv::cuda::launch_batch_norm_pool_gradient<double>(*call);
    case tconv::kFloat16: return tconv::cuda::launch_batch_norm_pool_gradient<__half>(*call);
    case tconv::kBFloat16: return tconv::cuda::launch_batch_norm_pool_gradient<__nv_bfloat16>(*call);
    default: return tconv::kUnsupportedDType;
  }
}

TCONV_EXPORT const char* tconv_cuda_error_string(int64_t code) { return tconv::cuda::error_string(code); }
