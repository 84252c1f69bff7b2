// Element-wise functors that compose into a convolution's epilogue, for float and double.
// NaN passes through every one of them, as in PyTorch.
#pragma once

#include <cmath>
#include <type_traits>

#include "common.h"
#if defined(__CUDACC__)
#include "cuda/branch_free_math.cuh"
#endif

namespace tconv {

// The platform's functions, unless the source brought its own (cpu/vector_math.h) before this file.
#ifndef TCONV_OWN_MATH
namespace math {
using ::erf;
using ::exp;
using ::tanh;
}  // namespace math
#endif

namespace elementwise {

template <typename T>
TCONV_HD T relu(T v) {
  return v < T(0) ? T(0) : v;
}

// 0.5 v (1 + erf(v / sqrt 2)), as exact as a result needs that is stored as Storage.
template <typename Storage = double, typename T>
TCONV_HD T gelu_erf(T v) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same<T, float>::value)
    return v * (sizeof(Storage) == 2 ? cuda::coarse_normal_cdf(v) : cuda::normal_cdf(v));
#endif
  return v * T(0.5) * (T(1) + T(math::erf(v * T(0.70710678118654752440))));
}

// 0.5 v (1 + tanh(sqrt(2/pi) (v + 0.044715 v^3)))
template <typename T>
TCONV_HD T gelu_tanh(T v) {
  const T inner = T(0.79788456080286535588) * (v + T(0.044715) * v * v * v);
  return T(0.5) * v * (T(1) + T(math::tanh(inner)));
}

template <typename T>
TCONV_HD T tanh_(T v) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same<T, float>::value) return cuda::tanh(v);
#endif
  return T(math::tanh(v));
}

template <typename T>
TCONV_HD T sigmoid(T v) {
  return T(1) / (T(1) + T(math::exp(-v)));
}

template <typename T>
TCONV_HD T clamp(T v, T lo, T hi) {
  v = v < lo ? lo : v;
  return v > hi ? hi : v;
}

}  // namespace elementwise
}  // namespace tconv
