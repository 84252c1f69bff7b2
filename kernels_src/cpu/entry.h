// The functions that the operator calls, of every entry file. A pattern is a class template over the tensor's type:
//   Pattern(const Call&, void* workspace)   carves its buffers; a null workspace only measures
//   int64_t workspace_bytes() const
//   void run()
#pragma once

#include "vector_code.h"  // first

#include "conv_transpose.h"

namespace tconv {
namespace cpu {

template <template <typename> class Pattern, typename Call>
inline int64_t pattern_workspace_bytes(const Call& call) {
  const int64_t status = check_call(call.conv);
  if (status != kOk) return status;
  return call.conv.dtype == kFloat32 ? Pattern<float>(call, nullptr).workspace_bytes()
                                     : Pattern<double>(call, nullptr).workspace_bytes();
}

template <template <typename> class Pattern, typename Call>
inline int64_t run_pattern(const Call& call) {
  const int64_t status = check_call(call.conv);
  if (status != kOk) return status;
  if (call.conv.workspace_bytes < pattern_workspace_bytes<Pattern>(call)) return kWorkspaceTooSmall;
  if (call.conv.layer.batch == 0) return kOk;
  if (call.conv.dtype == kFloat32)
    Pattern<float>(call, call.conv.workspace).run();
  else
    Pattern<double>(call, call.conv.workspace).run();
  return kOk;
}

}  // namespace cpu
}  // namespace tconv

// fp16 and bf16 are widened before and rounded once behind.
TCONV_EXPORT int64_t tconv_cpu_computes_in(int64_t dtype) {
  return dtype == tconv::kFloat64 ? tconv::kFloat64 : tconv::kFloat32;
}

// Of a positive status, which CUDA alone has.
TCONV_EXPORT const char* tconv_cpu_error_string(int64_t) { return ""; }

#define TCONV_EXPORT_PATTERN(PATTERN, CALL)                                 \
  TCONV_EXPORT int64_t tconv_cpu_workspace_bytes(const tconv::CALL* call) { \
    return tconv::cpu::pattern_workspace_bytes<tconv::cpu::PATTERN>(*call); \
  }                                                                         \
  TCONV_EXPORT int64_t tconv_cpu_run(const tconv::CALL* call) {             \
    return tconv::cpu::run_pattern<tconv::cpu::PATTERN>(*call);             \
  }
