// Values of a row that a lane has side by side, and the same part of what all rows have in common.
#pragma once

#include "group_norm_moments.cuh"

namespace tconv {
namespace cuda {

template <typename S, int kVector>
using RowValues = norm::Vector<S, kVector* static_cast<int>(sizeof(S))>;

template <typename Values, typename S>
__device__ __forceinline__ Values load_row_values(const S* at) {
  if constexpr (Values::kElements == 1)
    return {{*at}};
  else
    return norm::load_streaming<S, 16>(at);
}

// A lane's part of a parameter, `absent` where there is none.
template <typename Values, typename S>
__device__ __forceinline__ Values row_parameter(const S* values, int at, int row, bool in_vectors, float absent) {
  Values held;
#pragma unroll
  for (S& one : held.values) one = to_storage<S>(absent);
  if (values == nullptr || at >= row) return held;
  if (in_vectors) return *reinterpret_cast<const Values*>(values + at);
#pragma unroll
  for (int j = 0; j < Values::kElements; ++j) held.values[j] = values[at + j];
  return held;
}

}  // namespace cuda
}  // namespace tconv
