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

// GELU: v Phi(v), Phi the normal distribution's cumulative function, as |v| / 2 (1 - 2 Phi(-|v|)) + v / 2. 2 Phi(-a) = 2^P(a), P a
// minimax fit of its logarithm on [0, 5], weighted so that Phi is off by 2.1e-8 at most there; beyond, P falls on. As PyTorch's 1 + erf,
// 1 - 2 Phi loses digits where v is far below zero. Inf, -Inf and NaN become Inf, NaN and NaN.
__device__ __forceinline__ float gelu(float v) {
  const float a = fabsf(v), half = 0.5f * v;
  float p = -1.6202852748392615e-06f;
  p = fmaf(p, a, 2.5604424081393518e-05f);
  p = fmaf(p, a, -0.0001253551454283297f);
  p = fmaf(p, a, -0.0002710222906898707f);
  p = fmaf(p, a, 0.007220382336527109f);
  p = fmaf(p, a, -0.05259188637137413f);
  p = fmaf(p, a, -0.4591805934906006f);
  p = fmaf(p, a, -1.1511081457138062f);
  return fmaf(fabsf(half), 1.0f - power_of_2(p * a), half);
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
