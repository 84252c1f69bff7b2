// The CPU's half of a solution that is generated for CUDA alone: calls with tensors on a CPU are refused.
#include "../call.h"

#include <stdexcept>

TCONV_EXPORT int64_t tconv_cpu_computes_in(int64_t dtype) { return dtype; }
TCONV_EXPORT const char* tconv_cpu_error_string(int64_t) { return ""; }

// What TCONV_EXPORT_PATTERN (entry.h) is elsewhere; the generator writes one for each pattern.
#define TCONV_REFUSE_PATTERN(CALL)                                                                                     \
  TCONV_EXPORT int64_t tconv_cpu_workspace_bytes(const tconv::CALL*) {                                                 \
    throw std::runtime_error(                                                                                          \
        "conv_transpose: the input is on a CPU, and this solution was generated with --device cuda; allowed are CUDA " \
        "tensors");                                                                                                    \
  }                                                                                                                    \
  TCONV_EXPORT int64_t tconv_cpu_run(const tconv::CALL*) { return tconv::kUnsupportedKernel; }
