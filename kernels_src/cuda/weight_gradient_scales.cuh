// Powers of two that bring x and g into the range of fp16 containers (fp16_containers.cuh), found on the device, for
// gradients may be of any magnitude: from the largest of a sample of each tensor, with room for larger values above;
// what still does not fit raises the guard.
#pragma once

#include "check.h"
#include "fp16_containers.cuh"

namespace tconv {
namespace cuda {

// Device-side words of a call; cleared before its kernels run.
struct GradientState {
  GuardState guard;
  unsigned largest[2];  // magnitudes' bits, of x and of g
};

struct MagnitudeSampleConfig {
  static constexpr int kThreads = 256;
  static constexpr int kBlocks = 64;  // at most, for each tensor
  static constexpr int kPerThread = 16;
  // The sample's largest value lies in [2^7, 2^8) then: values 2^8 times as large fit, and those down to 2^-21 of it
  // keep 11 bits.
  static constexpr int kExponent = 7;
};

struct SampledTensor {
  const float* values;
  int64_t size_c, size_h, size_w, stride_n, stride_c, stride_h, stride_w;
  int64_t count, step;  // of values in all; from one value of the sample to the next, about
};

struct MagnitudeSampleArgs {
  SampledTensor tensors[2];
  GradientState* state;
};

// A block column of the grid for each tensor.
__global__ void __launch_bounds__(MagnitudeSampleConfig::kThreads)
    sample_magnitudes_kernel(const __grid_constant__ MagnitudeSampleArgs args) {
  using Config = MagnitudeSampleConfig;
  const SampledTensor& tensor = args.tensors[blockIdx.y];
  unsigned largest = 0;
#pragma unroll 4
  for (int i = 0; i < Config::kPerThread; ++i) {
    const int64_t nth = (static_cast<int64_t>(blockIdx.x) * Config::kPerThread + i) * Config::kThreads + threadIdx.x;
    // Not at even distances, which might all lie in one column.
    const int64_t at = nth * tensor.step + static_cast<int64_t>(static_cast<uint32_t>(nth) * 2654435761u) % tensor.step;
    if (at >= tensor.count) continue;
    int64_t rest = at;
    const auto next_digit = [&rest](int64_t radix) {
      const int64_t quotient = rest / radix, digit = rest - quotient * radix;
      rest = quotient;
      return digit;
    };
    const int64_t w = next_digit(tensor.size_w), h = next_digit(tensor.size_h), c = next_digit(tensor.size_c);
    const float v =
        tensor.values[rest * tensor.stride_n + c * tensor.stride_c + h * tensor.stride_h + w * tensor.stride_w];
    largest = max(largest, __float_as_uint(v) & 0x7FFFFFFFu);
  }
  largest = __reduce_max_sync(0xFFFFFFFFu, largest);
  if (threadIdx.x % 32 == 0 && largest > 0) atomicMax(&args.state->largest[blockIdx.y], largest);
}

// The exponent of the scale of a tensor with this largest value in its sample.
__device__ __forceinline__ int scale_exponent(unsigned largest) {
  if (largest == 0) return 8;  // zeros, as far as is known: kInputScale
  const int exponent = MagnitudeSampleConfig::kExponent - (static_cast<int>(largest >> 23) - 127);
  return exponent > 126 ? 126 : exponent;  // and at least 7 - 128
}

__device__ __forceinline__ float power_of_two(int exponent) {
  return __uint_as_float(static_cast<uint32_t>(127 + exponent) << 23);
}

}  // namespace cuda
}  // namespace tconv
