#pragma once

#include "inner_math.h"
#include "sigmoid.h"

namespace tconv {
namespace elementwise {

// v / (1 + exp(-v)): NaN at -Inf, as in PyTorch.
template <typename T>
TCONV_HD T silu(T v) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same<T, float>::value) return v * sigmoid(v);
#endif
  return T(v / (1 + math::inner_exp<T>(-v)));
}

#if defined(__CUDA_ARCH__)
// As the template in slopes.h, whose sigmoid has a branch.
TCONV_HD float silu_slope(float v) {
  const float share = sigmoid(v);
  return share * fmaf(v, 1.0f - share, 1.0f);
}
#endif

}  // namespace elementwise
}  // namespace tconv
