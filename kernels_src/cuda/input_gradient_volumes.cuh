// The input gradient of three dimensions as one convolution of stride one over volumes of planes (sliding_layer.h), or
// over grad itself; and, behind it, what the plain kernel is to two dimensions: values that are not finite computed
// again, each from exactly its own products.
#pragma once

#include "../gradient_call.h"
#include "check.h"
#include "conv_transpose_plain.cuh"
#include "fast_divisor.h"
#include "gradient_sums.cuh"
#include "sliding_layer.h"
#include "storage.cuh"

namespace tconv {
namespace cuda {

// Turns the walk over one slice of each volume into that over all slices.
inline void walk_volumes(ConvCall& walk, const GradientCall& call, const SlidingLayer& sliding) {
  const DepthAxis& axis = call.depth;
  if (axis.in == 0) return;
  ConvTransposeLayer& to = walk.layer;
  DepthWalk& depth = walk.depth;
  depth.slices = axis.in;
  depth.taps = depth.kernel_depth = sliding.d.taps;
  depth.step = sliding.d.step;
  depth.kernel_first = sliding.d.taps - 1, depth.kernel_step = 1;
  if (sliding.strided) {
    depth.in_depth = sliding.d.plane_size, depth.first = 0;
    depth.x_stride_d = to.x_stride_c;
    to.x_stride_c *= depth.in_depth;
    depth.x_stride_n = to.x_stride_n * depth.in_depth;
  } else {
    depth.in_depth = axis.out, depth.first = -axis.padding;
    depth.x_stride_d = axis.grad_stride, depth.x_stride_n = call.grad_stride_n;
  }
  to.x_stride_n = depth.x_stride_n | depth.x_stride_d;  // plans ask whether both are a multiple of something
  depth.out_stride_d = to.out_h * to.out_w, depth.out_stride_c = axis.in * depth.out_stride_d;
  depth.out_stride_n = to.out_channels * depth.out_stride_c;
  to.batch *= depth.slices, to.in_channels *= depth.taps;
}

// Channels of a group's depth tap where pixels are packed (volume_gradients.cuh): with more taps than one, whole
// blocks.
inline int64_t packed_tap_channels(const SlidingLayer& sliding) {
  constexpr int64_t kBlock = 64;
  const int64_t channels = sliding.channels_per_group;
  return sliding.d.taps == 1 ? channels : (channels + kBlock - 1) / kBlock * kBlock;
}

// The kernels load 8 channels of a tap together.
inline bool serves_volumes(const GradientCall& call, const SlidingLayer& sliding) {
  return call.depth.in == 0 || (sliding.channels_per_group % 8 == 0 && sliding.d.plane_size < INT32_MAX / 4);
}

template <typename Storage>
struct VolumeRepairArgs {
  ConvTransposeLayer layer;
  DepthAxis depth;
  const Storage* grad;
  const Storage* weight;
  Storage* grad_x;
  int64_t stride_n, stride_c, stride_h, stride_w;  // of grad
  bool round_operands;
  const int* repair_if;
  int64_t num_values, oc_per_group;
  FastDivisor64 by_in_w, by_in_h, by_in_depth, by_in_channels, by_ic_per_group;
};

template <typename Storage, bool kRound>
__device__ __forceinline__ float volume_gradient_value(const VolumeRepairArgs<Storage>& args, int64_t n, int64_t ic,
                                                       int64_t id, int64_t ih, int64_t iw) {
  const ConvTransposeLayer& p = args.layer;
  const int64_t group = args.by_ic_per_group.quotient(ic), taps = args.depth.kernel * p.kernel_h * p.kernel_w;
  const Storage* const grad = args.grad + n * args.stride_n + group * args.oc_per_group * args.stride_c;
  const Storage* tap = args.weight + ic * args.oc_per_group * taps;
  float sum = 0.0f;
  for (int64_t kd = 0; kd < args.depth.kernel; ++kd) {
    const int64_t od = id * args.depth.stride - args.depth.padding + kd * args.depth.dilation;
    for (int64_t kh = 0; kh < p.kernel_h; ++kh) {
      const int64_t oh = ih * p.stride_h - p.padding_h + kh * p.dilation_h;
      for (int64_t kw = 0; kw < p.kernel_w; ++kw, ++tap) {
        const int64_t ow = iw * p.stride_w - p.padding_w + kw * p.dilation_w;
        if (od < 0 || od >= args.depth.out || oh < 0 || oh >= p.out_h || ow < 0 || ow >= p.out_w) continue;
        const Storage* const from = grad + od * args.depth.grad_stride + oh * args.stride_h + ow * args.stride_w;
        for (int64_t oc = 0; oc < args.oc_per_group; ++oc)
          sum +=
              plain_operand<Storage, kRound>(from[oc * args.stride_c]) * plain_operand<Storage, kRound>(tap[oc * taps]);
      }
    }
  }
  return sum;
}

template <typename Storage>
__global__ void __launch_bounds__(kPlainPixels, kPlainMinBlocksPerSm)
    repair_volume_gradient_kernel(const __grid_constant__ VolumeRepairArgs<Storage> args) {
  if (*args.repair_if == 0) return;
  const ConvTransposeLayer& p = args.layer;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kPlainPixels + threadIdx.x; i < args.num_values;
       i += static_cast<int64_t>(gridDim.x) * kPlainPixels) {
    if (is_finite(args.grad_x[i])) continue;
    const int64_t line = args.by_in_w.quotient(i), iw = i - line * p.in_w;
    const int64_t slice = args.by_in_h.quotient(line), ih = line - slice * p.in_h;
    const int64_t volume = args.by_in_depth.quotient(slice), id = slice - volume * args.depth.in;
    const int64_t n = args.by_in_channels.quotient(volume), ic = volume - n * p.in_channels;
    float v;
    if constexpr (std::is_same_v<Storage, float>)
      v = args.round_operands ? volume_gradient_value<Storage, true>(args, n, ic, id, ih, iw)
                              : volume_gradient_value<Storage, false>(args, n, ic, id, ih, iw);
    else
      v = volume_gradient_value<Storage, false>(args, n, ic, id, ih, iw);
    args.grad_x[i] = to_storage<Storage>(v);
  }
}

template <typename Storage>
int64_t launch_repair_volume_gradient(const GradientCall& call, const int* repair_if) {
  const ConvTransposeLayer& p = call.conv.layer;
  VolumeRepairArgs<Storage> args;
  args.layer = p, args.depth = call.depth;
  args.grad = static_cast<const Storage*>(call.grad);
  args.weight = static_cast<const Storage*>(call.conv.weight);
  args.grad_x = static_cast<Storage*>(call.grad_x);
  args.stride_n = call.grad_stride_n, args.stride_c = call.grad_stride_c;
  args.stride_h = call.grad_stride_h, args.stride_w = call.grad_stride_w;
  args.round_operands = call.conv.math == kMathTF32;
  args.repair_if = repair_if;
  args.num_values = p.batch * p.in_channels * call.depth.in * p.in_h * p.in_w;
  args.oc_per_group = p.out_channels / p.groups;
  args.by_in_w = FastDivisor64::make(p.in_w), args.by_in_h = FastDivisor64::make(p.in_h);
  args.by_in_depth = FastDivisor64::make(call.depth.in);
  args.by_in_channels = FastDivisor64::make(p.in_channels);
  args.by_ic_per_group = FastDivisor64::make(p.in_channels / p.groups);
  const int64_t blocks = (args.num_values + kPlainPixels - 1) / kPlainPixels;
  constexpr int64_t kMostBlocks = 1024;  // that as a rule find nothing to do
  return launch_kernel(repair_volume_gradient_kernel<Storage>,
                       dim3(static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks)), dim3(kPlainPixels), 0,
                       call.conv.stream, args);
}

}  // namespace cuda
}  // namespace tconv
