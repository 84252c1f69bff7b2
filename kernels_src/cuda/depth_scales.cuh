// Which values of volumes (depth_walk.h) are sampled for their scale: all, but of a gradient those of the residue's
// slices where a call takes no others.
#pragma once

#include "../gradient_call.h"
#include "gradient_scales.cuh"

namespace tconv {
namespace cuda {

// A tensor of volumes, of whose slices each lies stride_d behind the one before.
inline SampledTensor sampled_volumes(SampledTensor image, int64_t size_d, int64_t stride_d) {
  using Config = MagnitudeSampleConfig;
  constexpr int64_t kMost = int64_t{Config::kBlocks} * Config::kThreads;
  image.size_d = size_d, image.stride_d = stride_d;
  image.count *= size_d;
  image.dense = image.dense && size_d == 1;
  image.step = image.count > kMost ? (image.count + kMost - 1) / kMost : 1;
  return image;
}

inline SampledTensor sampled_input(const ConvCall& call) {
  const ConvTransposeLayer& p = call.layer;
  const DepthWalk& depth = call.depth;
  if (!depth.walks())
    return sampled_tensor(call.x, p.batch, p.in_channels, p.in_h, p.in_w, p.x_stride_n, p.x_stride_c, p.x_stride_h,
                          p.x_stride_w);
  return sampled_volumes(sampled_tensor(call.x, p.batch / depth.slices, p.in_channels / depth.tap_count(), p.in_h,
                                        p.in_w, depth.x_stride_n, p.x_stride_c, p.x_stride_h, p.x_stride_w),
                         depth.in_depth, depth.x_stride_d);
}

inline SampledTensor sampled_grad(const GradientCall& call) {
  const ConvTransposeLayer& p = call.conv.layer;
  const DepthWalk& depth = call.conv.depth;
  const int64_t stride_h = call.grad_stride_h, stride_w = call.grad_stride_w;
  if (call.depth.in > 0)  // whole volumes
    return sampled_volumes(sampled_tensor(call.grad, depth.walks() ? p.batch / depth.slices : p.batch, p.out_channels,
                                          p.out_h, p.out_w, call.grad_stride_n, call.grad_stride_c, stride_h, stride_w),
                           call.depth.out, call.depth.grad_stride);
  if (!depth.walks())
    return sampled_tensor(call.grad, p.batch, p.out_channels, p.out_h, p.out_w, call.grad_stride_n, call.grad_stride_c,
                          stride_h, stride_w);
  return sampled_volumes(sampled_tensor(call.grad, p.batch / depth.slices, p.out_channels, p.out_h, p.out_w,
                                        depth.out_stride_n, depth.out_stride_c, stride_h, stride_w),
                         depth.slices, depth.out_stride_d);
}

}  // namespace cuda
}  // namespace tconv
