// The CUDA source of a forward compiles in parts side by side, in less than half the time: fp32 and fp64; fp16; bf16;
// and apart from each the kernels of hopper_part.cuh. TCONV_WITHOUT_FP32 (nor fp64), TCONV_WITHOUT_FP16 and
// TCONV_WITHOUT_BF16 say what a part leaves out; without them one translation unit has everything. Names that parts
// would share end in the part's name in all but the first (generator/runtime/build.py).
#pragma once

#include "../common.h"

#define TCONV_PASTED(NAME, PART) NAME##PART
#define TCONV_IN_PART(NAME, PART) TCONV_PASTED(NAME, PART)  // NAME may be a macro: generator/runtime/several_calls.py

// TCONV_LEFT_OUT_FP32(launch<float>, const Call&) and the like stand behind a function template that launches kernels:
// where its type is left out, so are its kernels.
#define TCONV_LEFT_OUT(FUNCTION, ...)    \
  template <>                            \
  inline int64_t FUNCTION(__VA_ARGS__) { \
    return kUnsupportedDType;            \
  }
#ifdef TCONV_WITHOUT_FP32
#define TCONV_LEFT_OUT_FP32 TCONV_LEFT_OUT
#else
#define TCONV_LEFT_OUT_FP32(...)
#endif
#ifdef TCONV_WITHOUT_FP16
#define TCONV_LEFT_OUT_FP16 TCONV_LEFT_OUT
#else
#define TCONV_LEFT_OUT_FP16(...)
#endif
#ifdef TCONV_WITHOUT_BF16
#define TCONV_LEFT_OUT_BF16 TCONV_LEFT_OUT
#else
#define TCONV_LEFT_OUT_BF16(...)
#endif
// Likewise for a template of a storage type.
#define TCONV_LEFT_OUT_STORAGE(FUNCTION, ...)        \
  TCONV_LEFT_OUT_FP32(FUNCTION<float>, __VA_ARGS__)  \
  TCONV_LEFT_OUT_FP32(FUNCTION<double>, __VA_ARGS__) \
  TCONV_LEFT_OUT_FP16(FUNCTION<__half>, __VA_ARGS__) \
  TCONV_LEFT_OUT_BF16(FUNCTION<__nv_bfloat16>, __VA_ARGS__)

// At the head of an exported function: the part for fp32 and fp64, which the operator calls, hands calls in the other
// dtypes to the function of the same name in theirs.
#if !defined(TCONV_WITHOUT_FP32) && defined(TCONV_WITHOUT_FP16) && defined(TCONV_WITHOUT_BF16)
#define TCONV_HAND_OVER(NAME, CALL)                                                 \
  if (CALL->conv.dtype == tconv::kFloat16) return TCONV_IN_PART(NAME, _fp16)(CALL); \
  if (CALL->conv.dtype == tconv::kBFloat16) return TCONV_IN_PART(NAME, _bf16)(CALL);
TCONV_EXPORT int64_t TCONV_IN_PART(tconv_cuda_workspace_bytes, _fp16)(const void* call);
TCONV_EXPORT int64_t TCONV_IN_PART(tconv_cuda_workspace_bytes, _bf16)(const void* call);
TCONV_EXPORT int64_t TCONV_IN_PART(tconv_cuda_run, _fp16)(const void* call);
TCONV_EXPORT int64_t TCONV_IN_PART(tconv_cuda_run, _bf16)(const void* call);
#else
#define TCONV_HAND_OVER(NAME, CALL)
#endif
