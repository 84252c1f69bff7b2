#pragma once

#include "inner_math.h"

namespace tconv {
namespace elementwise {

// log(1 + exp(beta v)) / beta, v itself where beta v is above the threshold.
template <typename T>
TCONV_HD T softplus(T v, T beta, T threshold) {
  const T scaled = v * beta;
  const T soft = T(math::inner_log1p<T>(math::inner_exp<T>(scaled)) / beta);
  return scaled > threshold ? v : soft;
}

}  // namespace elementwise
}  // namespace tconv
