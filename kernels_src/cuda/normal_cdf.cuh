// The normal distribution's cumulative function for GELU, in fp32 without branches.
#pragma once

namespace tconv {
namespace cuda {

// Phi(v) = erfc(-v / sqrt 2) / 2. For a = |v|: Phi(-a) = exp(-a^2 / 2) t P(t), t = 1 / (1 + 0.29 a), where P is a minimax fit of the
// form in Abramowitz & Stegun 7.1.26 (relative error 1.8e-8 for a < 2.5, below 1.8e-6 beyond). No term cancels: v Phi(v) keeps its digits for
// negative v too, where 1 + erf loses them. Phi(Inf) = 1, Phi(-Inf) = 0, NaN stays.
__device__ __forceinline__ float normal_cdf(float v) {
  float t, power;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(t) : "f"(fmaf(0.29f, fabsf(v), 1.0f)));
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(v * v * -0.72134752044448170f));  // -log2(e) / 2
  float p = 0.037231579422950745f;
  p = fmaf(p, t, -0.1820623278617859f);
  p = fmaf(p, t, 0.28261348605155945f);
  p = fmaf(p, t, -0.1228543221950531f);
  p = fmaf(p, t, 0.1651645302772522f);
  p = fmaf(p, t, 0.085897296667099f);
  p = fmaf(p, t, 0.11847714334726334f);
  p = fmaf(p, t, 0.11553260684013367f);
  const float below = p * t * power;
  return v > 0.0f ? 1.0f - below : below;
}

}  // namespace cuda
}  // namespace tconv
