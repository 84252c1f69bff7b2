// GELU's tanh form in fp32: a solution has it where its chain does.
#pragma once

#include "elementwise/inner_math.h"

#if defined(__CUDACC__) || defined(TCONV_OWN_MATH)
namespace tconv {
namespace elementwise {

// 0.5 v (1 + tanh u) = v / (1 + exp(-2 u)), without a branch and with the digits that 1 + tanh u loses where u < 0.
// 2 u log2(e) = w (w^2 + 4.9...), where w^3 = 2 log2(e) sqrt(2/pi) 0.044715 v^3.
template <>
TCONV_HD float gelu_tanh<float>(float v) {
#if defined(__CUDA_ARCH__)
  const float w = v * 0.46866869926452637f;
  return v * cuda::reciprocal(1.0f + cuda::power_of_2(-w * fmaf(w, w, 4.912229537963867f)));
#elif defined(TCONV_OWN_MATH)
  const double w = v, twice = 1.59576912160573071 * (w + 0.044715 * w * w * w);
  return static_cast<float>(w / (1.0 + math::inner_exp<float>(-twice)));
#else
  return static_cast<float>(gelu_tanh<double>(v));
#endif
}

}  // namespace elementwise
}  // namespace tconv
#endif
