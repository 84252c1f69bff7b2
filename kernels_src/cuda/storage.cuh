// Tensor element types on CUDA: the C++ type of each DType, what it accumulates in, conversions.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "../common.h"

namespace tconv {
namespace cuda {

template <typename Storage>
struct StorageTraits {
  using Acc = float;
};
template <>
struct StorageTraits<double> {
  using Acc = double;
};

// Rounds an accumulator to the tensor's type, to nearest even.
template <typename Storage, typename Acc>
__device__ __forceinline__ Storage to_storage(Acc v) {
  return static_cast<Storage>(v);
}
template <>
__device__ __forceinline__ __half to_storage<__half, float>(float v) {
  return __float2half_rn(v);
}
template <>
__device__ __forceinline__ __nv_bfloat16 to_storage<__nv_bfloat16, float>(float v) {
  return __float2bfloat16_rn(v);
}

}  // namespace cuda
}  // namespace tconv
