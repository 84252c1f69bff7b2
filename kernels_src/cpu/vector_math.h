// exp, tanh and erf that a compiler can vectorise: no branches, no calls, no tables. elementwise.h uses these on CPU.
// Largest errors over all floats, against fp64: exp 1.0, tanh 1.4, erf 1.5 units in the last place.
// Polynomials: least-squares minimax fits (Lawson's weights) of the functions named beside them.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#define TCONV_OWN_MATH 1

namespace tconv {
namespace math {

inline double exp(double v) { return std::exp(v); }
inline double tanh(double v) { return std::tanh(v); }
inline double erf(double v) { return std::erf(v); }

inline float power_of_two(int32_t exponent) {
  const int32_t bits = (exponent + 127) * (1 << 23);
  float power;
  std::memcpy(&power, &bits, sizeof(power));
  return power;
}

// exp(v) = 2^exponent * fraction for |v| < 200.
struct ExpParts {
  int32_t exponent;
  float fraction;
};

inline ExpParts exp_parts(float v) {
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float shifted = v * 1.44269504f + magic;
  const float n = shifted - magic;
  int32_t bits;
  std::memcpy(&bits, &shifted, sizeof(bits));
  // ln 2 in two pieces, the first short enough for exact products
  const float r = (v - n * 0.693359375f) - n * -2.12194440e-4f;
  // (exp(r) - 1 - r) / r^2 on |r| <= ln(2)/2
  float q = 1.381459995e-3f;
  q = q * r + 8.368715644e-3f;
  q = q * r + 4.166838899e-2f;
  q = q * r + 1.666652113e-1f;
  q = q * r + 4.999999404e-1f;
  return {bits - 0x4B400000, 1.0f + (r + r * r * q)};
}

inline float exp(float v) {
  v = v > 89.0f ? 89.0f : v;
  v = v < -104.0f ? -104.0f : v;
  const ExpParts parts = exp_parts(v);
  const int32_t half = parts.exponent >> 1;  // in two steps, because 2^-149 and 2^128 are no normal floats
  return parts.fraction * power_of_two(half) * power_of_two(parts.exponent - half);
}

inline float tanh(float v) {
  const float a = __builtin_fabsf(v), z = v * v;
  // (tanh(v) / v - 1) / v^2 on |v| <= 0.625
  float p = -5.717036780e-3f;
  p = p * z + 2.065057866e-2f;
  p = p * z - 5.374349654e-2f;
  p = p * z + 1.333149076e-1f;
  p = p * z - 3.333328366e-1f;
  const float small = v + v * z * p;
  const ExpParts parts = exp_parts(a > 10.0f ? 20.0f : 2.0f * a);
  const float large = __builtin_copysignf(1.0f - 2.0f / (parts.fraction * power_of_two(parts.exponent) + 1.0f), v);
  const float result = a < 0.625f ? small : large;
  return v != v ? v : result;
}

inline float erf(float v) {
  const float magnitude = __builtin_fabsf(v), z = v * v;
  // erf(v) / v - 1 on |v| <= 1
  float p = 7.889114204e-5f;
  p = p * z - 8.020839887e-4f;
  p = p * z + 5.189535208e-3f;
  p = p * z - 2.685444430e-2f;
  p = p * z + 1.128360033e-1f;
  p = p * z - 3.761262596e-1f;
  p = p * z + 1.283791661e-1f;
  const float small = v + v * p;
  // log(1 - erf(v)) on 1 <= v <= 3.95, beyond which erf(v) rounds to 1
  const float a = magnitude > 4.0f ? 4.0f : magnitude;
  float q = 1.855748560e-4f;
  q = q * a - 2.939615399e-3f;
  q = q * a + 2.180534974e-2f;
  q = q * a - 1.030374318e-1f;
  q = q * a - 6.382256150e-1f;
  q = q * a - 1.127040029f;
  q = q * a - 3.537093289e-4f;
  const ExpParts parts = exp_parts(q);
  const float large = __builtin_copysignf(1.0f - parts.fraction * power_of_two(parts.exponent), v);
  const float result = magnitude < 1.0f ? small : large;
  return v != v ? v : result;
}

}  // namespace math
}  // namespace tconv
