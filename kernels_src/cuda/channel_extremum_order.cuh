// Minima as maxima: values in an order in which the wanted one is the largest, NaN above all, as in PyTorch.
#pragma once

#include "../call.h"
#include "pool_window.cuh"

namespace tconv {
namespace cuda {

constexpr int kExtremumChannels = 64;  // whose extremum the Hopper kernel stores as one plane

// Of a group's channels.
TCONV_HD constexpr int extremum_planes(int channels) { return (channels + kExtremumChannels - 1) / kExtremumChannels; }

struct ExtremumOrder {
  uint32_t sign;

  explicit __device__ __forceinline__ ExtremumOrder(int64_t extremum) : sign(extremum == kLeast ? 0x80000000u : 0u) {}

  // -inf: no value at all.
  static __device__ __forceinline__ float least() { return __uint_as_float(0xFF800000u); }

  // In order, and back.
  __device__ __forceinline__ float value(float v) const { return __uint_as_float(__float_as_uint(v) ^ sign); }
};

}  // namespace cuda
}  // namespace tconv
