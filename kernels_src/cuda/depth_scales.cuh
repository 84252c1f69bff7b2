// Which values of volumes (depth_walk.h) are sampled for their scale: of volumes whose channels follow each other as
// densely as slices do, all; of others the first slice.
#pragma once

#include "gradient_scales.cuh"

namespace tconv {
namespace cuda {

inline SampledTensor sampled_volumes(const ConvCall& call) {
  const ConvTransposeLayer& p = call.layer;
  const DepthWalk& depth = call.depth;
  const int64_t volumes = p.batch / depth.slices, channels = p.in_channels / depth.taps;
  const bool dense = p.x_stride_c == depth.in_depth * depth.x_stride_d;
  return sampled_tensor(call.x, volumes, dense ? channels * depth.in_depth : channels, p.in_h, p.in_w, depth.x_stride_n,
                        dense ? depth.x_stride_d : p.x_stride_c, p.x_stride_h, p.x_stride_w);
}

}  // namespace cuda
}  // namespace tconv
