// fp32 quotients of epilogues without the branch of an IEEE division.
#pragma once

#include "branch_free_math.cuh"

namespace tconv {
namespace cuda {

// a / b for b >= 1, as an IEEE division but for a unit in the last place now and then, or two where the result is
// below 1e-37. Of quarters, so that the reciprocal is a normal number for every finite b. Where a or b is infinite the
// remainder is NaN, and where it is zero it would cost a zero's sign: then the first product is the result.
__device__ __forceinline__ float quotient(float a, float b) {
  const float over = 0.25f * a, under = 0.25f * b, rough = reciprocal(under);
  const float inverse = fmaf(fmaf(-under, rough, 1.0f), rough, rough);
  const float first = over * rough, remainder = fmaf(-under, first, over);
  return fabsf(remainder) > 0.0f ? fmaf(remainder, inverse, first) : first;
}

}  // namespace cuda
}  // namespace tconv
