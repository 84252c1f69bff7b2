// Gradient of the weight for every dtype, every parameter, any strides, 64-bit indices:
//
//   dw[ci, co', kh, kw] = sum over n, ih, iw of x[n, ci, ih, iw] * g[n, co, ih*sh - ph + kh*dh, iw*sw - pw + kw*dw]
//   for exactly those pixels whose tap reads inside g
//
// A block has one pair of channels, kTaps taps side by side and a part of all samples' input pixels; gradient_sums.cuh
// adds the parts up. The order of every sum is fixed by the layer and the device.
#pragma once

#include "../gradient_call.h"
#include "conv_transpose_plain.cuh"
#include "device_limits.h"
#include "gradient_sums.cuh"
#ifdef TCONV_WALKS_DEPTH
#include "volume_images.cuh"
#endif

namespace tconv {
namespace cuda {

struct WeightGradientPlainConfig {
  static constexpr int kThreads = kPlainPixels;  // block_sum's
  static constexpr int kTaps = 4;
  static constexpr int kInner = 64;               // products of a thread that are summed before they join its sum
  static constexpr int kPixelsPerPart = 1 << 13;  // at least, where there are blocks enough
  static constexpr int kBlocksPerSm = 8;          // at most so many are wanted
};

struct WeightGradientPlainPlan {
  int64_t num_parts, tap_chunks, count;  // count: values of the gradient

  WeightGradientPlainPlan(const ConvTransposeLayer& p, int sm_count) {
    using Config = WeightGradientPlainConfig;
    const int64_t pairs = p.in_channels * (p.out_channels / p.groups), pixels = p.batch * p.in_h * p.in_w;
    tap_chunks = (p.kernel_h * p.kernel_w + Config::kTaps - 1) / Config::kTaps;
    count = pairs * p.kernel_h * p.kernel_w;
    const int64_t wanted = (int64_t{Config::kBlocksPerSm} * sm_count + pairs * tap_chunks - 1) / (pairs * tap_chunks);
    const int64_t most = (pixels + Config::kPixelsPerPart - 1) / Config::kPixelsPerPart;
    num_parts = wanted < most ? wanted : most;
  }
};

template <typename Storage>
struct WeightGradientPlainArgs {
  ConvTransposeLayer layer;
  const Storage* x;
  const Storage* grad;
  typename StorageTraits<Storage>::Acc* parts;     // [num_parts][count]
  int64_t stride_n, stride_c, stride_h, stride_w;  // of grad
  bool round_operands;
  int64_t num_parts, tap_chunks, count, num_pixels, part_pixels, num_blocks, ic_per_group, oc_per_group;
  FastDivisor64 by_in_w, by_in_h;
#ifdef TCONV_WALKS_DEPTH
  VolumeImages x_images, grad_images;
  WeightPlaces weight;

  // Of the value of that number, in the gradient.
  __device__ __forceinline__ int64_t place_of(int64_t value) const {
    const int64_t pair = value / weight.plane_taps, ic = pair / oc_per_group;
    return weight.of_pair(ic, pair - ic * oc_per_group) + value - pair * weight.plane_taps;
  }
#endif
};

#ifdef TCONV_WALKS_DEPTH
template <typename Storage, bool kRound, bool kVolumes = false>
#else
template <typename Storage, bool kRound>
#endif
__device__ __forceinline__ void weight_gradient_part(
    const WeightGradientPlainArgs<Storage>& args, int64_t ic, int64_t oc, int64_t tap0, int64_t begin, int64_t end,
    typename StorageTraits<Storage>::Acc (&sums)[WeightGradientPlainConfig::kTaps]) {
  using Config = WeightGradientPlainConfig;
  using Acc = typename StorageTraits<Storage>::Acc;
  const ConvTransposeLayer& p = args.layer;
  const int64_t taps = p.kernel_h * p.kernel_w;
#ifdef TCONV_WALKS_DEPTH
  const int64_t group = ic / args.ic_per_group, channel = ic - group * args.ic_per_group;
  const int64_t x_channel = group * static_cast<int64_t>(args.x_images.by_tap_channels.divisor) + channel;
#endif
  int64_t shift_h[Config::kTaps], shift_w[Config::kTaps];
#pragma unroll
  for (int t = 0; t < Config::kTaps; ++t) {
    const int64_t tap = tap0 + t < taps ? tap0 + t : tap0;
    const int64_t kh = tap / p.kernel_w;
    shift_h[t] = kh * p.dilation_h - p.padding_h;
    shift_w[t] = (tap - kh * p.kernel_w) * p.dilation_w - p.padding_w;
    sums[t] = 0;
  }
  for (int64_t first = begin + threadIdx.x; first < end; first += Config::kInner * Config::kThreads) {
    Acc inner[Config::kTaps] = {};
    for (int step = 0; step < Config::kInner; ++step) {
      const int64_t pixel = first + step * Config::kThreads;
      if (pixel >= end) break;
      const int64_t line = args.by_in_w.quotient(pixel), iw = pixel - line * p.in_w;
      const int64_t n = args.by_in_h.quotient(line), ih = line - n * p.in_h;
#ifdef TCONV_WALKS_DEPTH
      int64_t of_x = n * p.x_stride_n + ic * p.x_stride_c, of_grad = n * args.stride_n + oc * args.stride_c;
      if constexpr (kVolumes) {
        const ImageSlice x_slice(args.x_images, n, channel), grad_slice(args.grad_images, n, 0);
        if (!x_slice.there) continue;
        of_x = x_slice.offset + x_channel * args.x_images.stride_c;
        of_grad = grad_slice.offset + oc * args.grad_images.stride_c;
      }
      const Acc x = plain_operand<Storage, kRound>(args.x[of_x + ih * p.x_stride_h + iw * p.x_stride_w]);
      const Storage* const grad = args.grad + of_grad;
#else
      const Acc x = plain_operand<Storage, kRound>(
          args.x[n * p.x_stride_n + ic * p.x_stride_c + ih * p.x_stride_h + iw * p.x_stride_w]);
      const Storage* const grad = args.grad + n * args.stride_n + oc * args.stride_c;
#endif
#pragma unroll
      for (int t = 0; t < Config::kTaps; ++t) {
        const int64_t oh = ih * p.stride_h + shift_h[t], ow = iw * p.stride_w + shift_w[t];
        if (oh >= 0 && oh < p.out_h && ow >= 0 && ow < p.out_w)
          inner[t] += x * plain_operand<Storage, kRound>(grad[oh * args.stride_h + ow * args.stride_w]);
      }
    }
#pragma unroll
    for (int t = 0; t < Config::kTaps; ++t) sums[t] += inner[t];
  }
}

template <typename Storage>
__global__ void __launch_bounds__(WeightGradientPlainConfig::kThreads)
    weight_gradient_plain_kernel(const __grid_constant__ WeightGradientPlainArgs<Storage> args) {
  using Config = WeightGradientPlainConfig;
  using Acc = typename StorageTraits<Storage>::Acc;
  __shared__ Acc scratch[Config::kThreads / 32];
  const int64_t taps = args.layer.kernel_h * args.layer.kernel_w;
  for (int64_t block = blockIdx.x; block < args.num_blocks; block += gridDim.x) {
    int64_t rest = block;
    const int64_t tap0 = rest % args.tap_chunks * Config::kTaps;
    rest /= args.tap_chunks;
    const int64_t oc_in_group = rest % args.oc_per_group;
    rest /= args.oc_per_group;
    const int64_t ic = rest % args.layer.in_channels, part = rest / args.layer.in_channels;
    const int64_t oc = ic / args.ic_per_group * args.oc_per_group + oc_in_group;
    const int64_t begin = part * args.part_pixels, end = min(begin + args.part_pixels, args.num_pixels);
    Acc sums[Config::kTaps];
    if constexpr (std::is_same_v<Storage, float>) {
      if (args.round_operands)
        weight_gradient_part<Storage, true>(args, ic, oc, tap0, begin, end, sums);
      else
        weight_gradient_part<Storage, false>(args, ic, oc, tap0, begin, end, sums);
    } else {
      weight_gradient_part<Storage, false>(args, ic, oc, tap0, begin, end, sums);
    }
#pragma unroll
    for (int t = 0; t < Config::kTaps; ++t) {
      const Acc sum = block_sum<Acc>(sums[t], scratch);
      if (threadIdx.x == 0 && tap0 + t < taps)
        args.parts[part * args.count + (ic * args.oc_per_group + oc_in_group) * taps + tap0 + t] = sum;
    }
  }
}

// All but where sums go.
template <typename Storage>
WeightGradientPlainArgs<Storage> weight_gradient_plain_args(const GradientCall& call,
                                                            const WeightGradientPlainPlan& plan) {
  const ConvTransposeLayer& p = call.conv.layer;
  WeightGradientPlainArgs<Storage> args;
  args.layer = p;
  args.x = static_cast<const Storage*>(call.conv.x);
  args.grad = static_cast<const Storage*>(call.grad);
  args.parts = nullptr;
  args.stride_n = call.grad_stride_n, args.stride_c = call.grad_stride_c;
  args.stride_h = call.grad_stride_h, args.stride_w = call.grad_stride_w;
  args.round_operands = call.conv.math == kMathTF32;
  args.num_parts = plan.num_parts, args.tap_chunks = plan.tap_chunks, args.count = plan.count;
  args.num_pixels = p.batch * p.in_h * p.in_w;
  args.part_pixels = plan.num_parts > 0 ? (args.num_pixels + plan.num_parts - 1) / plan.num_parts : 0;
  args.ic_per_group = p.in_channels / p.groups, args.oc_per_group = p.out_channels / p.groups;
  args.num_blocks = plan.num_parts * p.in_channels * args.oc_per_group * plan.tap_chunks;
  args.by_in_w = FastDivisor64::make(p.in_w);
  args.by_in_h = FastDivisor64::make(p.in_h);
#ifdef TCONV_WALKS_DEPTH
  args.x_images = VolumeImages::of_x(call.conv), args.grad_images = VolumeImages::of_grad(call);
  args.weight = WeightPlaces(call.conv);
#endif
  return args;
}

template <typename Storage>
int64_t launch_weight_gradient_plain(const GradientCall& call, const WeightGradientPlainPlan& plan, void* workspace) {
  using Acc = typename StorageTraits<Storage>::Acc;
  WeightGradientPlainArgs<Storage> args = weight_gradient_plain_args<Storage>(call, plan);
  args.parts = static_cast<Acc*>(workspace);
  if (args.num_blocks > 0)
    TCONV_RETURN_IF_ERROR(
        launch_kernel(weight_gradient_plain_kernel<Storage>,
                      dim3(static_cast<unsigned>(args.num_blocks < INT32_MAX ? args.num_blocks : INT32_MAX)),
                      dim3(WeightGradientPlainConfig::kThreads), 0, call.conv.stream, args));
  return launch_sum_gradient_parts(args.parts, static_cast<Storage*>(call.grad_weight), plan.num_parts, plan.count,
                                   call.conv.stream);
}

}  // namespace cuda
}  // namespace tconv
