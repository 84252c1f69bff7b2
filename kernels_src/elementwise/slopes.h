// Derivatives of functors, where they are longer than a line. By PyTorch's formulas
// (aten/src/ATen/native/cuda/Activation*.cu), NaN where those have it.
#pragma once

#include "inner_math.h"

namespace tconv {
namespace elementwise {

// Phi(v) + v phi(v) for the normal distribution's Phi and its density phi, as exact as a result needs that is stored as
// Storage.
template <typename Storage = double, typename T>
TCONV_HD T gelu_erf_slope(T v) {
#if defined(__CUDA_ARCH__)
  if constexpr (std::is_same<T, float>::value) {
    const float density = 0.39894228040143268f * cuda::power_of_2(v * v * -0.72134752044448170f);
    return fmaf(v, density, sizeof(Storage) == 2 ? cuda::coarse_normal_cdf(v) : cuda::normal_cdf(v));
  }
#endif
  const T density = T(0.39894228040143268) * T(math::exp(v * v * T(-0.5)));
  return T(0.5) * (T(1) + T(math::erf(v * T(0.70710678118654752440)))) + v * density;
}

template <typename T>
TCONV_HD T gelu_tanh_slope(T v) {
  const T scale = T(0.79788456080286535588), cubic = T(0.044715);
  const T t = tanh_(scale * (v + cubic * v * v * v));
  return T(0.5) * (T(1) + t) + T(0.5) * v * (T(1) - t * t) * scale * (T(1) + T(3) * cubic * v * v);
}

template <typename T>
TCONV_HD T silu_slope(T v) {
  const T share = sigmoid(v);
  return share * (T(1) + v * (T(1) - share));
}

// tanh(log(1 + e^v)) = h / (h + 1), h = e^v + e^2v / 2; its derivative is (1 - tanh^2) sigmoid(v).
template <typename T>
TCONV_HD T mish_slope(T v) {
  const bool open = v > T(40);  // the gate is 1
  const T e = T(math::exp(open ? T(40) : v)), h = e + e * e / T(2);
  const T rest = open ? T(0) : T(1) / (h + T(1)), gate = open ? T(1) : h * rest;
  return gate + v * sigmoid(v) * (rest * (T(1) + gate));
}

template <typename T>
TCONV_HD T softplus_slope(T v, T beta, T threshold) {
  const T scaled = v * beta;
  return scaled > threshold ? T(1) : sigmoid(scaled);
}

// 0 of NaN, as torch.sgn.
template <typename T>
TCONV_HD T sign(T v) {
  return v > T(0) ? T(1) : (v < T(0) ? T(-1) : T(0));
}

}  // namespace elementwise
}  // namespace tconv
