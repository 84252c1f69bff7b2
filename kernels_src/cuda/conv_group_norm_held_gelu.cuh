// GELU for outputs that are held as differences in 16 bits.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "../elementwise.h"
#include "conv_group_norm_held_types.h"

namespace tconv {
namespace cuda {
namespace held {

// A type of 16 bits, in which results are held as differences from a usual one: they need an absolute error, not a
// relative one.
template <typename Storage>
struct Difference {
  Storage value;

  TCONV_HD operator float() const { return static_cast<float>(value); }
};

// v Phi(v): 2 Phi(-a) = 2^P(a). P is a minimax fit for the absolute error of a Phi(-a), at most 1.7e-6 (fp16 rounds
// 0.17, the largest, by 6e-5); the relative one is 1e-4 for v > -2, and 0.6 % down to -5.5, where v itself, rounded to
// fp16, would be 1 % off. P falls without end, so that Phi(-Inf) = 0.
__device__ __forceinline__ float gelu_of_difference(float v) {
  const float a = fabsf(v);
  float p = -0.00036753618041984737f;
  p = fmaf(p, a, 0.006366963963955641f);
  p = fmaf(p, a, -0.0501098558306694f);
  p = fmaf(p, a, -0.4617551565170288f);
  p = fmaf(p, a, -1.1500458717346191f);
  p = fmaf(p, a, -0.00013233759091235697f);
  return v * normal_cdf_of(v, power_of_2(p));
}

}  // namespace held
}  // namespace cuda

namespace elementwise {

template <>
TCONV_HD float gelu_erf<cuda::held::Difference<__half>, float>(float v) {
#if defined(__CUDA_ARCH__)
  return cuda::held::gelu_of_difference(v);
#else
  return gelu_erf(v);
#endif
}
template <>
TCONV_HD float gelu_erf<cuda::held::Difference<__nv_bfloat16>, float>(float v) {
  return gelu_erf<cuda::held::Difference<__half>>(v);
}

}  // namespace elementwise
}  // namespace tconv
