// Gradient of the input, one thread per value, for every dtype, every parameter, any strides, 64-bit indices:
//
//   dx[n, ci, ih, iw] = sum over co of ci's group, kh, kw of
//                       g[n, co, ih*sh - ph + kh*dh, iw*sw - pw + kw*dw] * w[ci, co', kh, kw]
//   for exactly those taps that read inside g  (layer.h, solved for x)
#pragma once

#include "../gradient_call.h"
#include "check.h"
#include "conv_transpose_plain.cuh"
#include "fast_divisor.h"
#include "gradient_sums.cuh"
#include "storage.cuh"

namespace tconv {
namespace cuda {

template <typename Storage>
struct InputGradientPlainArgs {
  ConvTransposeLayer layer;
  const Storage* grad;
  const Storage* weight;
  Storage* grad_x;
  int64_t stride_n, stride_c, stride_h, stride_w;  // of grad
  bool round_operands;                             // fp32 with TF32 allowed: as the tensor-core kernels
  // null, or on the device: where it does not hold 0, values that are not finite are computed again, and nothing else
  // is.
  const int* repair_if;
  int64_t num_values, ic_per_group, oc_per_group;
  FastDivisor64 by_in_w, by_in_h, by_in_channels, by_ic_per_group;
};

template <typename Storage, bool kRound>
__device__ __forceinline__ typename StorageTraits<Storage>::Acc input_gradient_value(
    const InputGradientPlainArgs<Storage>& args, int64_t n, int64_t ic, int64_t ih, int64_t iw) {
  using Acc = typename StorageTraits<Storage>::Acc;
  const ConvTransposeLayer& p = args.layer;
  const int64_t group = args.by_ic_per_group.quotient(ic), taps = p.kernel_h * p.kernel_w;
  const Storage* const grad = args.grad + n * args.stride_n + group * args.oc_per_group * args.stride_c;
  const Storage* const weight = args.weight + ic * args.oc_per_group * taps;
  Acc acc = 0;
  for (int64_t kh = 0; kh < p.kernel_h; ++kh) {
    const int64_t oh = ih * p.stride_h - p.padding_h + kh * p.dilation_h;
    if (oh < 0 || oh >= p.out_h) continue;
    for (int64_t kw = 0; kw < p.kernel_w; ++kw) {
      const int64_t ow = iw * p.stride_w - p.padding_w + kw * p.dilation_w;
      if (ow < 0 || ow >= p.out_w) continue;
      const Storage* from = grad + oh * args.stride_h + ow * args.stride_w;
      const Storage* tap = weight + kh * p.kernel_w + kw;
      for (int64_t oc = 0; oc < args.oc_per_group; ++oc, from += args.stride_c, tap += taps)
        acc += plain_operand<Storage, kRound>(*from) * plain_operand<Storage, kRound>(*tap);
    }
  }
  return acc;
}

template <typename Storage>
__global__ void __launch_bounds__(kPlainPixels, kPlainMinBlocksPerSm)
    input_gradient_plain_kernel(const __grid_constant__ InputGradientPlainArgs<Storage> args) {
  const ConvTransposeLayer& p = args.layer;
  if (args.repair_if != nullptr && *args.repair_if == 0) return;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kPlainPixels + threadIdx.x; i < args.num_values;
       i += static_cast<int64_t>(gridDim.x) * kPlainPixels) {
    if (args.repair_if != nullptr && is_finite(args.grad_x[i])) continue;
    const int64_t line = args.by_in_w.quotient(i), iw = i - line * p.in_w;
    const int64_t plane = args.by_in_h.quotient(line), ih = line - plane * p.in_h;
    const int64_t n = args.by_in_channels.quotient(plane), ic = plane - n * p.in_channels;
    typename StorageTraits<Storage>::Acc v;
    if constexpr (std::is_same_v<Storage, float>)
      v = args.round_operands ? input_gradient_value<Storage, true>(args, n, ic, ih, iw)
                              : input_gradient_value<Storage, false>(args, n, ic, ih, iw);
    else
      v = input_gradient_value<Storage, false>(args, n, ic, ih, iw);
    args.grad_x[i] = to_storage<Storage>(v);
  }
}

template <typename Storage>
int64_t launch_input_gradient_plain(const GradientCall& call, const int* repair_if = nullptr) {
  const ConvTransposeLayer& p = call.conv.layer;
  InputGradientPlainArgs<Storage> args;
  args.layer = p;
  args.grad = static_cast<const Storage*>(call.grad);
  args.weight = static_cast<const Storage*>(call.conv.weight);
  args.grad_x = static_cast<Storage*>(call.grad_x);
  args.stride_n = call.grad_stride_n, args.stride_c = call.grad_stride_c;
  args.stride_h = call.grad_stride_h, args.stride_w = call.grad_stride_w;
  args.round_operands = call.conv.math == kMathTF32;
  args.repair_if = repair_if;
  args.num_values = p.batch * p.in_channels * p.in_h * p.in_w;
  args.ic_per_group = p.in_channels / p.groups, args.oc_per_group = p.out_channels / p.groups;
  args.by_in_w = FastDivisor64::make(p.in_w);
  args.by_in_h = FastDivisor64::make(p.in_h);
  args.by_in_channels = FastDivisor64::make(p.in_channels);
  args.by_ic_per_group = FastDivisor64::make(args.ic_per_group);
  const int64_t blocks = (args.num_values + kPlainPixels - 1) / kPlainPixels;
  constexpr int64_t kMostRepairBlocks = 1024;  // that as a rule find nothing to do
  const int64_t most = repair_if != nullptr ? kMostRepairBlocks : INT32_MAX;
  return launch_kernel(input_gradient_plain_kernel<Storage>, dim3(static_cast<unsigned>(blocks < most ? blocks : most)),
                       dim3(kPlainPixels), 0, call.conv.stream, args);
}

}  // namespace cuda
}  // namespace tconv
