// What of a tile's line is output of one phase, for epilogues of their own.
#pragma once

#include "conv_transpose_hopper_epilogue.cuh"

namespace tconv {
namespace cuda {
namespace hopper {

template <int N, typename Storage>
__device__ __forceinline__ LineExtent<stacks(N)> line_extent(const HopperArgs<Storage>& args, const Phase& phase,
                                                             const TileCursor& at) {
  const Plan& plan = args.plan;
  return {min(plan.line_samples, args.batch - at.sample),
          phase.out_count_h,
          min(plan.tile_w, phase.out_count_w - at.strip * plan.tile_w),
          plan.image_rows,
          args.by_pitch,
          args.by_image_rows};
}

}  // namespace hopper
}  // namespace cuda
}  // namespace tconv
