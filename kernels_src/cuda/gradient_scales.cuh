// Powers of two that bring operands of gradients into the range of fp16 containers (fp16_containers.cuh), found on the
// device, for gradients may be of any magnitude: from the largest of a sample of each tensor, with room for larger
// values above; what still does not fit raises the guard.
#pragma once

#include "check.h"
#include "fp16_containers.cuh"

namespace tconv {
namespace cuda {

struct MagnitudeSampleConfig {
  static constexpr int kThreads = 256;
  static constexpr int kBlocks = 256;  // at most, for each tensor
#ifdef TCONV_SAMPLES_INPUTS
  // Inputs of layers: values 2^4 times as large as the sample's largest fit, and those down to 2^-25 of it keep 11
  // bits, for behind a softmax most are small.
  static constexpr int kExponent = 11;
#else
  // The sample's largest value lies in [2^7, 2^8) then: values 2^8 times as large fit, and those down to 2^-21 of it
  // keep 11 bits.
  static constexpr int kExponent = 7;
#endif
};

struct SampledTensor {
  const float* values;
  int64_t size_c, size_h, size_w, stride_n, stride_c, stride_h, stride_w;
  int64_t count, step;  // of values in all; from one value of the sample to the next, about
  bool dense;           // one value behind the other
#ifdef TCONV_WALKS_DEPTH
  int64_t size_d = 1, stride_d = 0;  // between channels and rows
#endif
};

// A row of the grid's blocks for each tensor. largest: magnitudes' bits, zeros before.
struct MagnitudeSampleArgs {
  SampledTensor tensors[2];
  unsigned* largest[2];
};

__global__ void __launch_bounds__(MagnitudeSampleConfig::kThreads)
    sample_magnitudes_kernel(const __grid_constant__ MagnitudeSampleArgs args) {
  using Config = MagnitudeSampleConfig;
  const SampledTensor& tensor = args.tensors[blockIdx.y];
  unsigned largest = 0;
  const int64_t nth = static_cast<int64_t>(blockIdx.x) * Config::kThreads + threadIdx.x;
  // Not at even distances, which might all lie in one column.
  const uint64_t hash = static_cast<uint32_t>(nth) * 2654435761u;
  const int64_t at = nth * tensor.step + static_cast<int64_t>(hash * static_cast<uint64_t>(tensor.step) >> 32);
  if (at < tensor.count) {
    if (tensor.dense) {
      largest = __float_as_uint(tensor.values[at]) & 0x7FFFFFFFu;
    } else {
      int64_t rest = at;
      const auto next_digit = [&rest](int64_t radix) {
        const int64_t quotient = rest / radix, digit = rest - quotient * radix;
        rest = quotient;
        return digit;
      };
#ifdef TCONV_WALKS_DEPTH
      const int64_t w = next_digit(tensor.size_w), h = next_digit(tensor.size_h), d = next_digit(tensor.size_d),
                    c = next_digit(tensor.size_c);
      const float v = tensor.values[rest * tensor.stride_n + c * tensor.stride_c + d * tensor.stride_d +
                                    h * tensor.stride_h + w * tensor.stride_w];
#else
      const int64_t w = next_digit(tensor.size_w), h = next_digit(tensor.size_h), c = next_digit(tensor.size_c);
      const float v =
          tensor.values[rest * tensor.stride_n + c * tensor.stride_c + h * tensor.stride_h + w * tensor.stride_w];
#endif
      largest = __float_as_uint(v) & 0x7FFFFFFFu;
    }
  }
  __shared__ unsigned of_block;
  if (threadIdx.x == 0) of_block = 0;
  __syncthreads();
  largest = __reduce_max_sync(0xFFFFFFFFu, largest);
  if (threadIdx.x % 32 == 0) atomicMax(&of_block, largest);
  __syncthreads();
  if (threadIdx.x == 0 && of_block > 0) atomicMax(args.largest[blockIdx.y], of_block);
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

__device__ __forceinline__ InputScale::InputScale(const GuardState* state)
    : exponent(scale_exponent(state->largest)),
      value(power_of_two(exponent)),
      smallest_exact(power_of_two(max(-14 - exponent, -126))) {}

// The tensor of these sizes and strides, sampled evenly but for what keeps columns apart.
inline SampledTensor sampled_tensor(const void* values, int64_t n, int64_t c, int64_t h, int64_t w, int64_t stride_n,
                                    int64_t stride_c, int64_t stride_h, int64_t stride_w) {
  using Config = MagnitudeSampleConfig;
  constexpr int64_t kMost = int64_t{Config::kBlocks} * Config::kThreads;
  SampledTensor tensor = {
      static_cast<const float*>(values), c, h, w, stride_n, stride_c, stride_h, stride_w, n * c * h * w, 1, false};
  tensor.dense = stride_w == 1 && stride_h == w && stride_c == h * w && stride_n == c * h * w;
  tensor.step = tensor.count > kMost ? (tensor.count + kMost - 1) / kMost : 1;
  return tensor;
}

// Of the first `count` tensors. largest: set to zero before.
inline int64_t launch_sample_magnitudes(const MagnitudeSampleArgs& args, int count, void* stream) {
  using Config = MagnitudeSampleConfig;
  int64_t most = 1;
  for (int i = 0; i < count; ++i) {
    const int64_t sampled = (args.tensors[i].count + args.tensors[i].step - 1) / args.tensors[i].step;
    most = sampled > most ? sampled : most;
  }
  constexpr int64_t kPerBlock = Config::kThreads;
  return launch_kernel(sample_magnitudes_kernel,
                       dim3(static_cast<unsigned>((most + kPerBlock - 1) / kPerBlock), static_cast<unsigned>(count)),
                       dim3(Config::kThreads), 0, stream, args);
}

}  // namespace cuda
}  // namespace tconv
