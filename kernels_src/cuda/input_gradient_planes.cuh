// g of a strided layer -> its planes (sliding_layer.h), zeros where a tap would read outside g:
//   grad [batch, out_channels, out_h, out_w], any strides -> planes [batch][group][class h][class w][oc of
//   group][plane_h][pitch]
// A warp per row.
#pragma once

#include "../gradient_call.h"
#include "check.h"
#include "gradient_sums.cuh"
#include "sliding_layer.h"

namespace tconv {
namespace cuda {

struct GradientPlanesConfig {
  static constexpr int kThreads = 256;
  static constexpr int kRowsPerBlock = kThreads / 32;
};

template <typename Storage>
struct GradientPlanesArgs {
  ConvTransposeLayer layer;
  const Storage* grad;
  int64_t stride_n, stride_c, stride_h, stride_w;  // of grad
  Storage* planes;
  int* not_finite;  // null, or set to 1 where a value of the planes is infinite or NaN
  int64_t classes_w, channels_per_group, oc_per_group, plane_h, pitch, num_rows;
};

template <typename Storage>
__global__ void __launch_bounds__(GradientPlanesConfig::kThreads)
    gradient_planes_kernel(const __grid_constant__ GradientPlanesArgs<Storage> args) {
  const ConvTransposeLayer& p = args.layer;
  const int64_t step = static_cast<int64_t>(gridDim.x) * GradientPlanesConfig::kRowsPerBlock;
  for (int64_t row = static_cast<int64_t>(blockIdx.x) * GradientPlanesConfig::kRowsPerBlock + threadIdx.x / 32;
       row < args.num_rows; row += step) {
    const int64_t plane = row / args.plane_h, h = row - plane * args.plane_h;
    const int64_t group_of_all = plane / args.channels_per_group,
                  channel = plane - group_of_all * args.channels_per_group;
    const int64_t n = group_of_all / p.groups, group = group_of_all - n * p.groups;
    const PlaneChannel from(channel, args.classes_w, args.oc_per_group);
    const int64_t oh = h * p.stride_h + from.class_h * p.dilation_h - p.padding_h;
    const bool inside = oh >= 0 && oh < p.out_h;
    const Storage* const source =
        args.grad + n * args.stride_n + (group * args.oc_per_group + from.oc) * args.stride_c + oh * args.stride_h;
    Storage* const to = args.planes + row * args.pitch;
    for (int64_t w = threadIdx.x % 32; w < args.pitch; w += 32) {
      const int64_t ow = w * p.stride_w + from.class_w * p.dilation_w - p.padding_w;
      const Storage v = inside && ow >= 0 && ow < p.out_w ? source[ow * args.stride_w] : static_cast<Storage>(0.0f);
      to[w] = v;
      if (args.not_finite != nullptr && !is_finite(v)) *args.not_finite = 1;
    }
  }
}

template <typename Storage>
int64_t launch_gradient_planes(const GradientCall& call, const SlidingLayer& sliding, int64_t pitch, void* planes,
                               int* not_finite) {
  const ConvTransposeLayer& p = call.conv.layer;
  GradientPlanesArgs<Storage> args;
  args.layer = p;
  args.grad = static_cast<const Storage*>(call.grad);
  args.stride_n = call.grad_stride_n, args.stride_c = call.grad_stride_c;
  args.stride_h = call.grad_stride_h, args.stride_w = call.grad_stride_w;
  args.planes = static_cast<Storage*>(planes);
  args.not_finite = not_finite;
  args.classes_w = sliding.w.classes;
  args.channels_per_group = sliding.channels_per_group;
  args.oc_per_group = p.out_channels / p.groups;
  args.plane_h = sliding.h.plane_size;
  args.pitch = pitch;
  args.num_rows = p.batch * p.groups * sliding.channels_per_group * sliding.h.plane_size;
  const int64_t blocks =
      (args.num_rows + GradientPlanesConfig::kRowsPerBlock - 1) / GradientPlanesConfig::kRowsPerBlock;
  return launch_kernel(gradient_planes_kernel<Storage>,
                       dim3(static_cast<unsigned>(blocks < INT32_MAX ? blocks : INT32_MAX)),
                       dim3(GradientPlanesConfig::kThreads), 0, call.conv.stream, args);
}

}  // namespace cuda
}  // namespace tconv
