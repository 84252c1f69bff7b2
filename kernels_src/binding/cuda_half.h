// The CUDA half of the library, declared for the argument block of one pattern. (The CPU half stands before the
// operator in the same file.)
#pragma once

// From here to TCONV_REGISTER: the operator's own code, which waits for nothing but memory, compiles in half the time
// when it is optimised for size. (Templates of the kernels before it are made at the end of the file, with the options
// there.)
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("Os")
#endif

#include "../call.h"

#if defined(TCONV_WITH_CUDA)
#define TCONV_DECLARE_CUDA_HALF(CALL)                                  \
  TCONV_EXPORT int64_t tconv_cuda_workspace_bytes(const tconv::CALL*); \
  TCONV_EXPORT int64_t tconv_cuda_run(const tconv::CALL*);             \
  TCONV_EXPORT const char* tconv_cuda_error_string(int64_t code);
#else
#define TCONV_DECLARE_CUDA_HALF(CALL)
#endif
