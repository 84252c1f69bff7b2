// fp32 functions of the epilogues without branches: a warp's values take both sides of one anyway, and straight-line
// code overlaps. Built on the hardware's 2^x and 1/x (2 and 1 units in the last place). tests/test_gpu_elementwise.py
// measures both.
#pragma once

namespace tconv {
namespace cuda {

__device__ __forceinline__ float power_of_2(float v) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(v));
  return power;
}
__device__ __forceinline__ float reciprocal(float v) {
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(v));
  return inverse;
}

// Phi(v) from 2 Phi(-|v|), for the normal distribution's cumulative function Phi: v Phi(v) keeps its digits for
// negative v too, where 1 + erf loses them. Phi(Inf) = 1, Phi(-Inf) = 0, NaN stays where it is multiplied by v.
__device__ __forceinline__ float normal_cdf_of(float v, float twice_below) {
  float is_positive;
  asm("set.gt.f32.f32 %0, %1, 0f00000000;" : "=f"(is_positive) : "f"(v));
  return fabsf(fmaf(-0.5f, twice_below, is_positive));
}

// For a = |v|: 2 Phi(-a) = 2^(t Q(t) - a^2 log2(e) / 2), t = a / (1 + 0.135 a), Q a minimax fit (the power's error is
// 1e-8 for a < 1, 4e-8 for a < 6, 1e-6 for a < 13, beyond which it is zero). Near 0 the exponent is, too, and what it
// lacks in digits costs none.
__device__ __forceinline__ float normal_cdf(float v) {
#ifdef TCONV_GRADIENT_CHAINS
  // The same power as the density's, which slopes ask for, too: 2 Phi(-a) = e^(-a^2 / 2) t P(t), t = 1 / (1 + 0.305 a),
  // P a minimax fit (relative error 1.2e-7 for a < 14).
  const float t = reciprocal(fmaf(0.305f, fabsf(v), 1.0f));
  float p = 0.0733984187245369f;
  p = fmaf(p, t, -0.3059767782688141f);
  p = fmaf(p, t, 0.3714340627193451f);
  p = fmaf(p, t, -0.0759538784623146f);
  p = fmaf(p, t, 0.24204346537590027f);
  p = fmaf(p, t, 0.20684169232845306f);
  p = fmaf(p, t, 0.24493363499641418f);
  p = fmaf(p, t, 0.24327947199344635f);
  return normal_cdf_of(v, power_of_2(v * v * -0.72134752044448170f) * (t * p));
#else
  const float a = fminf(fabsf(v), 16.0f), t = a * reciprocal(fmaf(0.135f, a, 1.0f));
  float q = -2.5470484388279147e-7f;
  q = fmaf(q, t, 4.9120203584607225e-6f);
  q = fmaf(q, t, -3.934168489649892e-5f);
  q = fmaf(q, t, 0.00012329449236858636f);
  q = fmaf(q, t, 0.00019812768732663244f);
  q = fmaf(q, t, -0.0028025051578879356f);
  q = fmaf(q, t, -0.0026367076206952333f);
  q = fmaf(q, t, 0.10672566294670105f);
  q = fmaf(q, t, -1.1511040925979614f);
  return normal_cdf_of(v, power_of_2(fmaf(a * a, -0.72134752044448170f, q * t)));
#endif
}

// The same for results that are rounded to 16 bits: 2 Phi(-a) = 2^P(a), relative error 1.4e-5 for a < 5.6, 0.3 % where
// it is below 1e-9.
__device__ __forceinline__ float coarse_normal_cdf(float v) {
  const float a = fminf(fabsf(v), 13.5f);
  float p = 4.8928164630979154e-8f;
  p = fmaf(p, a, -2.767490059341071e-6f);
  p = fmaf(p, a, 6.722483522025868e-5f);
  p = fmaf(p, a, -0.000934177078306675f);
  p = fmaf(p, a, 0.008420100435614586f);
  p = fmaf(p, a, -0.05361385643482208f);
  p = fmaf(p, a, -0.45895934104919434f);
  p = fmaf(p, a, -1.1509987115859985f);
  p = fmaf(p, a, -1.96695327759e-5f);
  return normal_cdf_of(v, power_of_2(p));
}

// tanh: below 0.6 v + v^3 P(v^2), a minimax fit (relative error 3e-9), else 1 - 2 / (exp(2 |v|) + 1) with v's sign.
__device__ __forceinline__ float tanh(float v) {
  const float large = copysignf(fmaf(-2.0f, reciprocal(power_of_2(fabsf(v) * 2.885390082f) + 1.0f), 1.0f), v);
  const float square = v * v;
  float p = -0.005895158741623163f;
  p = fmaf(p, square, 0.020795973017811775f);
  p = fmaf(p, square, -0.053783830255270004f);
  p = fmaf(p, square, 0.13331924378871918f);
  p = fmaf(p, square, -0.33333298563957214f);
  return fabsf(v) < 0.6f ? fmaf(v * square, p, v) : large;
}

}  // namespace cuda
}  // namespace tconv
