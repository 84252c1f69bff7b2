#pragma once

#include "inner_math.h"
#if defined(__CUDACC__)
#include "../cuda/branch_free_quotient.cuh"
#endif

namespace tconv {
namespace elementwise {

// v / (1 + exp(-v)): NaN at -Inf, as in PyTorch.
template <typename T>
TCONV_HD T silu(T v) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same<T, float>::value) return cuda::quotient(v, 1.0f + expf(-v));
#endif
  return T(v / (1 + math::inner_exp<T>(-v)));
}

#if defined(__CUDA_ARCH__)
// As the template in slopes.h, whose sigmoid has a branch.
TCONV_HD float silu_slope(float v) {
  const float share = cuda::quotient(1.0f, 1.0f + expf(-v));
  return share * (1.0f + v * (1.0f - share));
}
#endif

}  // namespace elementwise
}  // namespace tconv
