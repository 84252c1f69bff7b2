// Functors made of comparisons and a few products.
#pragma once

#include "../elementwise.h"

namespace tconv {
namespace elementwise {

// NaN where either is, as in PyTorch.
template <typename T>
TCONV_HD T minimum(T v, T other) {
  return other < v || other != other ? other : v;
}
template <typename T>
TCONV_HD T maximum(T v, T other) {
  return v < other || other != other ? other : v;
}

template <typename T>
TCONV_HD T threshold(T v, T limit, T value) {
  return v <= limit ? value : v;
}

template <typename T>
TCONV_HD T leaky_relu(T v, T negative_slope) {
  return v > T(0) ? v : v * negative_slope;
}

// Multiplied, as PyTorch does on a GPU: a division is some ten instructions and a branch.
template <typename T>
TCONV_HD T sixth_of(T v) {
  return v * T(1.0 / 6);
}

template <typename T>
TCONV_HD T hardsigmoid(T v) {
  return sixth_of(clamp(v + T(3), T(0), T(6)));
}

// The product comes first, as in PyTorch, where it overflows.
template <typename T>
TCONV_HD T hardswish(T v) {
  return sixth_of(v * clamp(v + T(3), T(0), T(6)));
}

template <typename T>
TCONV_HD T softsign(T v) {
  return v / (T(1) + std::fabs(v));
}

}  // namespace elementwise
}  // namespace tconv
