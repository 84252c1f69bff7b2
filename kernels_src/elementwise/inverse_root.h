// What deviations from a mean are multiplied by.
#pragma once

#include "../elementwise.h"

namespace tconv {
namespace elementwise {

template <typename T>
TCONV_HD T inverse_root(T v) {
#if defined(__CUDA_ARCH__)
  return ::rsqrt(v);  // as PyTorch's
#else
  return T(1) / std::sqrt(v);
#endif
}

}  // namespace elementwise
}  // namespace tconv
