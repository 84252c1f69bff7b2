// exp, log and their neighbours within a functor, before its one rounding to T. For float on a CPU they take and give
// doubles, good to 1e-11: no branches, no calls, no tables, so that a compiler can vectorise them. Elsewhere they are
// the platform's, in T.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "../elementwise.h"

namespace tconv {
namespace math {

#ifdef TCONV_OWN_MATH

template <typename T>
using Inner = double;

inline uint64_t double_bits(double v) {
  uint64_t bits;
  std::memcpy(&bits, &v, sizeof(bits));
  return bits;
}
inline double double_of(uint64_t bits) {
  double v;
  std::memcpy(&v, &bits, sizeof(v));
  return v;
}

// exp(v) = power * (1 + excess), power = 2^n, for |v| < 700.
struct InnerExpParts {
  double power, excess;
};

inline InnerExpParts inner_exp_parts(double v) {
  const double magic = 6755399441055744.0;  // 1.5 * 2^52: adding it rounds to an integer, which lies in the low bits
  const double shifted = v * 1.4426950408889634 + magic;
  const double r = v - (shifted - magic) * 0.69314718055994531;
  const double power = double_of((double_bits(shifted) - double_bits(magic) + 1023) << 52);
  // Taylor's series of exp(r) - 1 on |r| <= ln(2)/2
  double q = 1.0 / 3628800;
  q = q * r + 1.0 / 362880;
  q = q * r + 1.0 / 40320;
  q = q * r + 1.0 / 5040;
  q = q * r + 1.0 / 720;
  q = q * r + 1.0 / 120;
  q = q * r + 1.0 / 24;
  q = q * r + 1.0 / 6;
  q = q * r + 0.5;
  return {power, r + r * r * q};
}

// As exp of floats has them: Inf above FLT_MAX, 0 below half of the smallest float.
template <typename T>
inline double inner_exp(double v) {
  if constexpr (std::is_same<T, double>::value) return std::exp(v);
  const InnerExpParts parts = inner_exp_parts(v < -104.0 ? -104.0 : (v > 89.0 ? 89.0 : v));
  const double result = parts.power + parts.power * parts.excess;
  return v > 88.72283905206835 ? INFINITY : (v < -103.97207708399179 ? 0.0 : result);
}

template <typename T>
inline double inner_expm1(double v) {
  if constexpr (std::is_same<T, double>::value) return std::expm1(v);
  const InnerExpParts parts = inner_exp_parts(v < -104.0 ? -104.0 : (v > 89.0 ? 89.0 : v));
  const double result = parts.power * parts.excess + (parts.power - 1.0);
  return v > 88.72283905206835 ? INFINITY : result;
}

// Of normal numbers (every float but 0 is one as a double), of 0, Inf and NaN; NaN below 0.
template <typename T>
inline double inner_log(double v) {
  if constexpr (std::is_same<T, double>::value) return std::log(v);
  const uint64_t bits = double_bits(v);
  const double mantissa = double_of((bits & 0xFFFFFFFFFFFFFull) | 0x3FF0000000000000ull);
  const bool large = mantissa > 1.4142135623730951;
  const double m = large ? 0.5 * mantissa : mantissa;
  // 2^52 + the exponent's field, as a double
  const double field = double_of((bits >> 52) | 0x4330000000000000ull);
  const double exponent = field - (4503599627370496.0 + 1023.0) + (large ? 1.0 : 0.0);
  // log(m) = 2 artanh(s), |s| <= 0.172
  const double s = (m - 1.0) / (m + 1.0), z = s * s;
  double p = 1.0 / 13;
  p = p * z + 1.0 / 11;
  p = p * z + 1.0 / 9;
  p = p * z + 1.0 / 7;
  p = p * z + 1.0 / 5;
  p = p * z + 1.0 / 3;
  double result = exponent * 0.69314718055994531 + 2.0 * (s + s * z * p);
  result = v == 0.0 ? -INFINITY : result;
  result = v < 0.0 ? NAN : result;
  return v < INFINITY ? result : v + v;  // Inf and NaN
}

// For v >= 0. What 1 + v rounds away comes back as a correction of the logarithm.
template <typename T>
inline double inner_log1p(double v) {
  if constexpr (std::is_same<T, double>::value) return std::log1p(v);
  const double u = 1.0 + v;
  const double result = inner_log<T>(u) - ((u - 1.0) - v) / u;
  return v < INFINITY ? result : v;
}

#else

template <typename T>
using Inner = T;

template <typename T>
TCONV_HD T inner_exp(T v) {
  return std::exp(v);
}
template <typename T>
TCONV_HD T inner_expm1(T v) {
  return std::expm1(v);
}
template <typename T>
TCONV_HD T inner_log(T v) {
  return std::log(v);
}
template <typename T>
TCONV_HD T inner_log1p(T v) {
  return std::log1p(v);
}

#endif

}  // namespace math
}  // namespace tconv
