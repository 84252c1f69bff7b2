// Division of non-negative integers by an invariant positive one: a multiplication and a shift.
// Source: Granlund, Montgomery, "Division by invariant integers using multiplication", 1994.
#pragma once

#include "../common.h"

namespace tconv {
namespace cuda {

// n, divisor < 2^31.
struct FastDivisor {
  uint32_t divisor, multiplier, shift;

  static FastDivisor make(uint32_t d) {
    FastDivisor f{d, 0, 0};
    while ((uint64_t{1} << f.shift) < d) ++f.shift;  // 2^shift >= d
    if (d > 1) f.multiplier = static_cast<uint32_t>(((uint64_t{1} << (31 + f.shift)) + d - 1) / d);
    return f;
  }

  TCONV_HD uint32_t quotient(uint32_t n) const {
    if (divisor == 1) return n;
    return static_cast<uint32_t>((static_cast<uint64_t>(n) * multiplier) >> (31 + shift));
  }
};

// n, divisor < 2^63.
struct FastDivisor64 {
  uint64_t divisor, multiplier;
  uint32_t shift;

  static FastDivisor64 make(uint64_t d) {
    FastDivisor64 f{d, 0, 0};
    while ((uint64_t{1} << f.shift) < d) ++f.shift;
    using Wide = unsigned __int128;
    if (d > 1) f.multiplier = static_cast<uint64_t>(((Wide{1} << (63 + f.shift)) + d - 1) / d);
    return f;
  }

  TCONV_HD int64_t quotient(int64_t n) const {
    if (divisor == 1) return n;
#if defined(__CUDA_ARCH__)
    const uint64_t high = __umul64hi(static_cast<uint64_t>(n), multiplier);
#else
    const uint64_t high = static_cast<uint64_t>((static_cast<unsigned __int128>(n) * multiplier) >> 64);
#endif
    return static_cast<int64_t>(high >> (shift - 1));
  }
};

}  // namespace cuda
}  // namespace tconv
