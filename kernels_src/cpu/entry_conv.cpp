// Pattern 1 on CPU: transposed convolution + element-wise epilogue.
#include "conv_transpose.h"

namespace tconv {
namespace cpu {

template <typename T>
int64_t run(const ConvCall& call) {
  const ConvOutputs<T> outputs{0, call.problem.batch, static_cast<T*>(call.out), nullptr};
  return run_conv_transpose<T>(call, outputs, call.workspace);
}

}  // namespace cpu
}  // namespace tconv

TCONV_EXPORT int64_t tconv_cpu_workspace_bytes(const tconv::ConvOnlyCall* call) {
  using namespace tconv;
  const int64_t status = cpu::check_call(call->conv);
  if (status != kOk) return status;
  return call->conv.dtype == kFloat32 ? cpu::conv_workspace_bytes<float>(call->conv)
                                      : cpu::conv_workspace_bytes<double>(call->conv);
}

TCONV_EXPORT int64_t tconv_cpu_run(const tconv::ConvOnlyCall* call) {
  using namespace tconv;
  const int64_t status = cpu::check_call(call->conv);
  if (status != kOk) return status;
  if (call->conv.workspace_bytes < tconv_cpu_workspace_bytes(call)) return kWorkspaceTooSmall;
  return call->conv.dtype == kFloat32 ? cpu::run<float>(call->conv) : cpu::run<double>(call->conv);
}
