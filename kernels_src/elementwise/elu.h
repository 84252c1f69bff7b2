#pragma once

#include "inner_math.h"

namespace tconv {
namespace elementwise {

// ELU, CELU and SELU: positive * v above 0, negative * (exp(inner * v) - 1) below.
template <typename T>
TCONV_HD T elu(T v, T negative, T positive, T inner) {
  const T below = T(math::inner_expm1<T>(v * inner) * negative);
  return v > T(0) ? v * positive : below;
}

}  // namespace elementwise
}  // namespace tconv
