// Gradients through tails on a CPU: none here, the Python side calls PyTorch's operators.
#include "../tail_gradient_call.h"

TCONV_EXPORT int64_t tconv_cpu_computes_in(int64_t dtype) { return dtype; }
TCONV_EXPORT const char* tconv_cpu_error_string(int64_t) { return ""; }
TCONV_EXPORT int64_t tconv_cpu_workspace_bytes(const tconv::TailGradientCall*) { return tconv::kUnsupportedKernel; }
TCONV_EXPORT int64_t tconv_cpu_run(const tconv::TailGradientCall*) { return tconv::kUnsupportedKernel; }
