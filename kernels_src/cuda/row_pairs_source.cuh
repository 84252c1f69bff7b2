// Where the Hopper convolution's data warps load pairs of input rows from (row_pairs.h).
#pragma once

#include "conv_transpose_hopper_args.cuh"

namespace tconv {
namespace cuda {
namespace hopper {

// `pair`: where the lane's part of a batch comes from. Of the row that its 8 channels of a half are of.
template <typename Source, typename Args>
__device__ __forceinline__ Source row_of_half(const Source& pair, const Args& args, int half) {
  const RowPairs& pairs = args.plan.pairs;
  Source of_row = pair;
  if (pairs.out == 0) return of_row;
  const bool second = pair.first_channel + half * kHalfChannels >= pairs.in;
  const int row = pair.first_row + second;
  of_row.inside = pair.inside && row >= 0 && row < pairs.in_rows;
  of_row.from += (second - pairs.before) * (args.x_stride_h / 2);
  if (!second) return of_row;
#ifdef TCONV_WALKS_DEPTH
  of_row.channel -= pairs.in;
#else
  of_row.from -= pairs.in * args.x_stride_c;
#endif
  return of_row;
}

}  // namespace hopper
}  // namespace cuda
}  // namespace tconv
