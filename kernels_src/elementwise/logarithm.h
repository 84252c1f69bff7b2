#pragma once

#include "inner_math.h"

namespace tconv {
namespace elementwise {

template <typename T>
TCONV_HD T log_(T v) {
  return T(math::inner_log<T>(v));
}

}  // namespace elementwise
}  // namespace tconv
