// 16-bit inputs where some weights are zeros for taps that there are not (row_pairs.h, joined_columns.h). What is not
// finite times such a zero is NaN where exact arithmetic has none: the data warps look for it and raise the guard, and
// the kernel behind (finite_fallback.cuh) computes all outputs again.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstring>
#include <type_traits>

#include "fp16_containers.cuh"

namespace tconv {
namespace cuda {

// By a whole warp.
template <typename Storage, int kRows, int kColumns>
__device__ __forceinline__ void guard_finite(const Storage (&values)[kRows][kColumns], GuardState* guard) {
  using Pair = typename std::conditional<std::is_same<Storage, __half>::value, __half2, __nv_bfloat162>::type;
  static_assert(kColumns % 2 == 0, "pairs");
  Pair largest;
  memset(&largest, 0, sizeof(largest));
#pragma unroll
  for (int k = 0; k < kRows; ++k)
#pragma unroll
    for (int j = 0; j < kColumns; j += 2) {
      Pair pair;
      memcpy(&pair, &values[k][j], sizeof(pair));
      largest = __hmax2_nan(largest, __habs2(pair));
    }
  Storage both[2];
  memcpy(both, &largest, sizeof(largest));
  const bool finite = isfinite(static_cast<float>(both[0])) && isfinite(static_cast<float>(both[1]));
  if (__any_sync(0xFFFFFFFFu, !finite) && threadIdx.x % 32 == 0) guard->out_of_range = 1;
}

}  // namespace cuda
}  // namespace tconv
