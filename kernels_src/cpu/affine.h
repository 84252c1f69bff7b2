// Normalisation as (v - center) * scale + shift.
#pragma once

#include <cmath>

#include "../moments.h"

namespace tconv {
namespace cpu {

// `center` is the mean rounded to T and `shift` takes up the rounding, so that a mean far larger than the spread
// cancels exactly.
template <typename T>
struct Affine {
  T center, scale, shift;

  TCONV_HD T apply(T v) const { return (v - center) * scale + shift; }
};

template <typename T>
inline Affine<T> make_affine(double mean, double variance, double eps, const T* weight, const T* bias,
                             int64_t channel) {
  const double scale = (weight != nullptr ? double(weight[channel]) : 1.0) / std::sqrt(variance + eps);
  Affine<T> affine;
  affine.center = T(mean);
  affine.scale = T(scale);
  affine.shift = T((bias != nullptr ? double(bias[channel]) : 0.0) - (mean - double(affine.center)) * scale);
  return affine;
}

}  // namespace cpu
}  // namespace tconv
