// Gradient of the bias: sums of g over samples and pixels, channel by channel, in two stages of fixed order; any
// strides.
#pragma once

#include "../gradient_call.h"
#include "conv_transpose_plain.cuh"
#include "device_limits.h"
#include "gradient_sums.cuh"

namespace tconv {
namespace cuda {

struct BiasGradientConfig {
  static constexpr int kThreads = kPlainPixels;   // block_sum's
  static constexpr int kInner = 16;               // loads of a thread under way, and the inner sum's length
  static constexpr int kPixelsPerPart = 1 << 14;  // at least, where there are blocks enough
  static constexpr int kBlocksPerSm = 8;
};

struct BiasGradientPlan {
  int64_t num_parts;

  BiasGradientPlan(const ConvTransposeLayer& p, int sm_count) {
    using Config = BiasGradientConfig;
    const int64_t pixels = p.batch * p.out_h * p.out_w;
    const int64_t wanted = (int64_t{Config::kBlocksPerSm} * sm_count + p.out_channels - 1) / p.out_channels;
    const int64_t most = (pixels + Config::kPixelsPerPart - 1) / Config::kPixelsPerPart;
    num_parts = wanted < most ? wanted : most;
  }
};

template <typename Storage>
struct BiasGradientArgs {
  const Storage* grad;
  typename StorageTraits<Storage>::Acc* parts;     // [num_parts][channels]
  int64_t stride_n, stride_c, stride_h, stride_w;  // of grad
  int64_t channels, out_h, out_w, num_pixels, part_pixels, num_blocks;
  FastDivisor64 by_out_w, by_out_h, by_channels;
};

template <typename Storage>
__global__ void __launch_bounds__(BiasGradientConfig::kThreads)
    bias_gradient_kernel(const __grid_constant__ BiasGradientArgs<Storage> args) {
  using Config = BiasGradientConfig;
  using Acc = typename StorageTraits<Storage>::Acc;
  __shared__ Acc scratch[Config::kThreads / 32];
  for (int64_t block = blockIdx.x; block < args.num_blocks; block += gridDim.x) {
    const int64_t part = args.by_channels.quotient(block), channel = block - part * args.channels;
    const int64_t begin = part * args.part_pixels, end = min(begin + args.part_pixels, args.num_pixels);
    const Storage* const from = args.grad + channel * args.stride_c;
    Acc sum = 0;
    for (int64_t first = begin + threadIdx.x; first < end; first += Config::kInner * Config::kThreads) {
      Acc inner = 0;
#pragma unroll
      for (int step = 0; step < Config::kInner; ++step) {
        const int64_t pixel = first + step * Config::kThreads;
        if (pixel < end) {
          const int64_t line = args.by_out_w.quotient(pixel), column = pixel - line * args.out_w;
          const int64_t n = args.by_out_h.quotient(line), row = line - n * args.out_h;
          inner += static_cast<Acc>(from[n * args.stride_n + row * args.stride_h + column * args.stride_w]);
        }
      }
      sum += inner;
    }
    sum = block_sum<Acc>(sum, scratch);
    if (threadIdx.x == 0) args.parts[part * args.channels + channel] = sum;
  }
}

template <typename Storage>
int64_t launch_bias_gradient(const GradientCall& call, const BiasGradientPlan& plan, void* workspace) {
  using Acc = typename StorageTraits<Storage>::Acc;
  const ConvTransposeLayer& p = call.conv.layer;
  BiasGradientArgs<Storage> args;
  args.grad = static_cast<const Storage*>(call.grad);
  args.parts = static_cast<Acc*>(workspace);
  args.stride_n = call.grad_stride_n, args.stride_c = call.grad_stride_c;
  args.stride_h = call.grad_stride_h, args.stride_w = call.grad_stride_w;
  args.channels = p.out_channels, args.out_h = p.out_h, args.out_w = p.out_w;
  args.num_pixels = p.batch * p.out_h * p.out_w;
  args.part_pixels = plan.num_parts > 0 ? (args.num_pixels + plan.num_parts - 1) / plan.num_parts : 0;
  args.num_blocks = plan.num_parts * p.out_channels;
  args.by_out_w = FastDivisor64::make(p.out_w);
  args.by_out_h = FastDivisor64::make(p.out_h);
  args.by_channels = FastDivisor64::make(p.out_channels);
  if (args.num_blocks > 0)
    TCONV_RETURN_IF_ERROR(
        launch_kernel(bias_gradient_kernel<Storage>,
                      dim3(static_cast<unsigned>(args.num_blocks < INT32_MAX ? args.num_blocks : INT32_MAX)),
                      dim3(BiasGradientConfig::kThreads), 0, call.conv.stream, args));
  return launch_sum_gradient_parts(args.parts, static_cast<Storage*>(call.grad_bias), plan.num_parts, p.out_channels,
                                   call.conv.stream);
}

}  // namespace cuda
}  // namespace tconv
