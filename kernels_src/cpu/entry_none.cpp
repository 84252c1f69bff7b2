// The CPU's half of a solution that is generated for CUDA alone: calls with tensors on a CPU are refused.
#include "../call.h"

#include <stdexcept>

inline int64_t tconv_cpu_computes_in(int64_t dtype) { return dtype; }
inline const char* tconv_cpu_error_string(int64_t) { return ""; }
template <typename Call>  // of any pattern
int64_t tconv_cpu_workspace_bytes(const Call*) {
  throw std::runtime_error(
      "conv_transpose: the input is on a CPU, and this solution was generated with --device cuda; allowed are CUDA "
      "tensors");
}
template <typename Call>
int64_t tconv_cpu_run(const Call*) {
  return tconv::kUnsupportedKernel;
}
