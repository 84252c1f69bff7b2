// Exported functions of the gradients' library, which every pattern shares.
#define TCONV_INPUT_SCALE_FROM_DEVICE  // fp16_containers.cuh

#include "gradients.cuh"
#ifdef TCONV_GRADIENT_CHAINS
#include "chain_gradients.cuh"
#endif

TCONV_EXPORT int64_t tconv_cuda_workspace_bytes(const tconv::GradientCall* call) {
#ifdef TCONV_GRADIENT_CHAINS
  if (call->of_chain.grad != nullptr) return tconv::cuda::chain_gradients_workspace_bytes(*call);
#endif
  return tconv::cuda::gradients_workspace_bytes(*call);
}

TCONV_EXPORT int64_t tconv_cuda_run(const tconv::GradientCall* call) {
#ifdef TCONV_GRADIENT_CHAINS
  if (call->of_chain.grad != nullptr) return tconv::cuda::run_chain_gradients(*call);
#endif
  if (call->conv.workspace_bytes < tconv::cuda::gradients_workspace_bytes(*call)) return tconv::kWorkspaceTooSmall;
  switch (call->conv.dtype) {
    case tconv::kFloat32: return tconv::cuda::launch_gradients<float>(*call);
    case tconv::kFloat64: return tconv::cuda::launch_gradients<double>(*call);
    case tconv::kFloat16: return tconv::cuda::launch_gradients<__half>(*call);
    case tconv::kBFloat16: return tconv::cuda::launch_gradients<__nv_bfloat16>(*call);
    default: return tconv::kUnsupportedDType;
  }
}

TCONV_EXPORT const char* tconv_cuda_error_string(int64_t code) { return tconv::cuda::error_string(code); }
