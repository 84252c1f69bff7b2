#pragma once

#include "inner_math.h"

namespace tconv {
namespace elementwise {

// v / (1 + exp(-v)): NaN at -Inf, as in PyTorch.
template <typename T>
TCONV_HD T silu(T v) {
  return T(v / (1 + math::inner_exp<T>(-v)));
}

}  // namespace elementwise
}  // namespace tconv
