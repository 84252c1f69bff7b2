// What every translation unit shares: host/device qualifiers, dtypes, math modes, error codes.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define TCONV_HD __host__ __device__ __forceinline__
#else
#define TCONV_HD inline
#endif

// What the operator calls of the CPU and of the CUDA half. Hidden, so that many libraries can live in one process.
#define TCONV_EXPORT extern "C" __attribute__((visibility("hidden")))

namespace tconv {

enum DType : int64_t { kFloat32 = 0, kFloat64 = 1, kFloat16 = 2, kBFloat16 = 3 };

// How fp32 tensors are multiplied. Other dtypes ignore it.
enum MathMode : int64_t {
  kMathTF32 = 0,    // operands rounded to nearest 11 significant bits, fp32 accumulation
  kMathStrict = 1,  // fp32 answer
};

// Which convolution kernel runs; kAuto follows the stated rule, the rest force one (tests).
enum KernelChoice : int64_t {
  kAuto = 0,
  kPlain = 1,
  kPortable = 2,
  kHopper = 3,
  kDirect = 4,
  kHeld = 5,
  kAtMostAvx2 = 6,  // on a CPU alone
  kInSlices = 7,    // with GroupNorm behind: slices of the batch, by the kernels that the rule chooses
};

// Return codes: 0 success, > 0 a cudaError_t, < 0 one of these.
enum Status : int64_t {
  kOk = 0,
  kUnsupportedDType = -1,
  kUnsupportedKernel = -2,  // the forced kernel cannot do this layer
  kWorkspaceTooSmall = -3,
};

}  // namespace tconv
