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

}  // namespace cuda
}  // namespace tconv
