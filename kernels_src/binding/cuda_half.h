// The CUDA half of the library, declared for the argument block of one pattern. (The CPU half stands before the
// operator in the same file.)
#pragma once

#include "../call.h"

#if defined(TCONV_WITH_CUDA)
#define TCONV_DECLARE_CUDA_HALF(CALL)                                  \
  TCONV_EXPORT int64_t tconv_cuda_workspace_bytes(const tconv::CALL*); \
  TCONV_EXPORT int64_t tconv_cuda_run(const tconv::CALL*);             \
  TCONV_EXPORT const char* tconv_cuda_error_string(int64_t code);
#else
#define TCONV_DECLARE_CUDA_HALF(CALL)
#endif
