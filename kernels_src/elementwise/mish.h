#pragma once

#include "inner_math.h"

namespace tconv {
namespace elementwise {

// v tanh(log(1 + e^v)) = v h / (h + 1), h = e^v + e^2v / 2. No difference, so no digits are lost; NaN at -Inf, as in
// PyTorch.
template <typename T>
TCONV_HD T mish(T v) {
  const bool open = v > T(40);  // where h / (h + 1) is 1
  const T bounded = open ? T(40) : v;
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same<T, float>::value) {
    const float e = expf(bounded), h = fmaf(0.5f * e, e, e);
    return open ? v : v * (h * cuda::reciprocal(h + 1.0f));  // whose product may be a unit less than 1
  }
#endif
  const math::Inner<T> e = math::inner_exp<T>(bounded), h = e + e * e / 2;
  return T(v * (h / (h + 1)));
}

#if defined(__CUDA_ARCH__)
// As the template in slopes.h, with one exponential and no branches: sigmoid(v) = e^v / (e^v + 1).
TCONV_HD float mish_slope(float v) {
  const bool open = v > 40.0f;
  const float e = expf(open ? 40.0f : v), h = fmaf(0.5f * e, e, e);
  const float rest = open ? 0.0f : cuda::reciprocal(h + 1.0f), gate = open ? 1.0f : h * rest;
  return fmaf(v * (e * cuda::reciprocal(e + 1.0f)), fmaf(rest, gate, rest), gate);
}
#endif

}  // namespace elementwise
}  // namespace tconv
