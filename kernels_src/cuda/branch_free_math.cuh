// fp32 functions of the epilogues without branches: a warp's values take both sides of one anyway, and straight-line code overlaps.
// Built on the hardware's 2^x and 1/x (2 and 1 units in the last place). tests/test_gpu_elementwise.py measures both.
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

// Phi(v) = erfc(-v / sqrt 2) / 2, the normal distribution's cumulative function. For a = |v|: Phi(-a) = exp(-a^2 / 2) t P(t),
// t = 1 / (1 + 0.29 a), P a minimax fit of the form in Abramowitz & Stegun 7.1.26 (relative error 1.8e-8 for a < 2.5, below
// 1.8e-6 beyond). No term cancels: v Phi(v) keeps its digits for negative v too, where 1 + erf loses them.
// Phi(Inf) = 1, Phi(-Inf) = 0, NaN stays.
__device__ __forceinline__ float normal_cdf(float v) {
  // Beyond 16 the power is zero. A Newton step, because the last place of t counts.
  const float d = fmaf(0.29f, fminf(fabsf(v), 16.0f), 1.0f), rough = reciprocal(d);
  const float t = fmaf(rough, fmaf(-d, rough, 1.0f), rough);
  float p = 0.037231579422950745f;
  p = fmaf(p, t, -0.1820623278617859f);
  p = fmaf(p, t, 0.28261348605155945f);
  p = fmaf(p, t, -0.1228543221950531f);
  p = fmaf(p, t, 0.1651645302772522f);
  p = fmaf(p, t, 0.085897296667099f);
  p = fmaf(p, t, 0.11847714334726334f);
  p = fmaf(p, t, 0.11553260684013367f);
  const float below = p * t * power_of_2(v * v * -0.72134752044448170f);  // -log2(e) / 2
  return v > 0.0f ? 1.0f - below : below;
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
