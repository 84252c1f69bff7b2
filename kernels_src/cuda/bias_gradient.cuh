// Gradient of the bias: sums of g over samples and pixels, channel by channel, in two stages of fixed order; any
// strides. Bound by reading g: a *line* is a run of values at one distance, a whole plane where rows lie behind each
// other, and blocks take tiles of lines, so that divisions are made once a tile.
#pragma once

#include "../gradient_call.h"
#include "conv_transpose_plain.cuh"
#include "device_limits.h"
#include "gradient_sums.cuh"

namespace tconv {
namespace cuda {

struct BiasGradientConfig {
  static constexpr int kThreads = kPlainPixels;  // block_sum's
  static constexpr int kVector = 4;              // values that lie side by side, loaded at once
  static constexpr int kInner = 4;               // vectors of a thread under way, and the inner sum's length
  static constexpr int kTile = kThreads * kVector * kInner;
  static constexpr int kBlocksPerSm = 8;
};

struct BiasGradientPlan {
  bool planes;  // lines are whole planes
  int64_t lines, length, tiles_per_line, num_tiles, num_parts;

  BiasGradientPlan(const GradientCall& call, int sm_count) {
    using Config = BiasGradientConfig;
    const ConvTransposeLayer& p = call.conv.layer;
    planes = call.grad_stride_h == p.out_w * call.grad_stride_w;
    lines = planes ? p.batch : p.batch * p.out_h;
    length = planes ? p.out_h * p.out_w : p.out_w;
    tiles_per_line = (length + Config::kTile - 1) / Config::kTile;
    num_tiles = lines * tiles_per_line;
    const int64_t wanted = (int64_t{Config::kBlocksPerSm} * sm_count + p.out_channels - 1) / p.out_channels;
    num_parts = wanted < num_tiles ? wanted : num_tiles;
  }
};

template <typename Storage>
struct BiasGradientArgs {
  const Storage* grad;
#ifdef TCONV_WALKS_DEPTH
  double* parts;  // [num_parts][channels]; of volumes, of which a channel has many millions of values
#else
  typename StorageTraits<Storage>::Acc* parts;  // [num_parts][channels]
#endif
  int64_t stride_n, stride_c, line_stride, step;
  int64_t channels, length, num_tiles, num_parts, num_blocks;
  bool vectors;                                   // of kVector values, aligned
  FastDivisor64 by_tiles, by_lines, by_channels;  // tiles of a line, lines of a sample
};

template <typename Storage>
__global__ void __launch_bounds__(BiasGradientConfig::kThreads)
    bias_gradient_kernel(const __grid_constant__ BiasGradientArgs<Storage> args) {
  using Config = BiasGradientConfig;
#ifdef TCONV_WALKS_DEPTH
  using Acc = double;
  const auto wide = [](Storage v) { return static_cast<Acc>(static_cast<typename StorageTraits<Storage>::Acc>(v)); };
#else
  using Acc = typename StorageTraits<Storage>::Acc;
#endif
  struct alignas(Config::kVector * sizeof(Storage)) Vector {
    Storage values[Config::kVector];
  };
  __shared__ Acc scratch[Config::kThreads / 32];
  for (int64_t block = blockIdx.x; block < args.num_blocks; block += gridDim.x) {
    const int64_t part = args.by_channels.quotient(block), channel = block - part * args.channels;
    Acc sum = 0;
    for (int64_t tile = part; tile < args.num_tiles; tile += args.num_parts) {
      const int64_t line = args.by_tiles.quotient(tile);
      const int64_t begin = (tile - line * static_cast<int64_t>(args.by_tiles.divisor)) * Config::kTile;
      const int64_t n = args.by_lines.quotient(line), row = line - n * static_cast<int64_t>(args.by_lines.divisor);
      const Storage* const from =
          args.grad + n * args.stride_n + channel * args.stride_c + row * args.line_stride + begin * args.step;
      const int count = static_cast<int>(min(args.length - begin, int64_t{Config::kTile}));
      Acc inner = 0;
      if (args.vectors) {
        Vector vectors[Config::kInner];
#pragma unroll
        for (int i = 0; i < Config::kInner; ++i) {
          const int at = (i * Config::kThreads + static_cast<int>(threadIdx.x)) * Config::kVector;
          vectors[i] = at < count ? *reinterpret_cast<const Vector*>(from + at) : Vector{};
        }
#pragma unroll
        for (int i = 0; i < Config::kInner; ++i)
#pragma unroll
#ifdef TCONV_WALKS_DEPTH
          for (int k = 0; k < Config::kVector; ++k) inner += wide(vectors[i].values[k]);
#else
          for (int k = 0; k < Config::kVector; ++k) inner += static_cast<Acc>(vectors[i].values[k]);
#endif
      } else {
#pragma unroll
        for (int i = 0; i < Config::kInner * Config::kVector; ++i) {
          const int at = i * Config::kThreads + static_cast<int>(threadIdx.x);
#ifdef TCONV_WALKS_DEPTH
          if (at < count) inner += wide(from[at * args.step]);
#else
          if (at < count) inner += static_cast<Acc>(from[at * args.step]);
#endif
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
#ifdef TCONV_WALKS_DEPTH
  using Acc = double;
#else
  using Acc = typename StorageTraits<Storage>::Acc;
#endif
  using Config = BiasGradientConfig;
  const ConvTransposeLayer& p = call.conv.layer;
  BiasGradientArgs<Storage> args;
  args.grad = static_cast<const Storage*>(call.grad);
  args.parts = static_cast<Acc*>(workspace);
  args.stride_n = call.grad_stride_n, args.stride_c = call.grad_stride_c;
  args.line_stride = call.grad_stride_h, args.step = call.grad_stride_w;
  args.channels = p.out_channels, args.length = plan.length;
  args.num_tiles = plan.num_tiles, args.num_parts = plan.num_parts;
  args.num_blocks = plan.num_parts * p.out_channels;
  args.vectors = args.step == 1 && reinterpret_cast<uintptr_t>(args.grad) % (Config::kVector * sizeof(Storage)) == 0;
  const int64_t multiples[] = {args.stride_n, args.stride_c, plan.planes ? 0 : args.line_stride, args.length};
  for (const int64_t value : multiples) args.vectors = args.vectors && value % Config::kVector == 0;
  args.by_tiles = FastDivisor64::make(plan.tiles_per_line > 0 ? plan.tiles_per_line : 1);
  args.by_lines = FastDivisor64::make(plan.planes ? 1 : p.out_h);
  args.by_channels = FastDivisor64::make(p.out_channels);
  if (args.num_blocks > 0)
    TCONV_RETURN_IF_ERROR(
        launch_kernel(bias_gradient_kernel<Storage>,
                      dim3(static_cast<unsigned>(args.num_blocks < INT32_MAX ? args.num_blocks : INT32_MAX)),
                      dim3(Config::kThreads), 0, call.conv.stream, args));
  return launch_sum_gradient_parts(args.parts, static_cast<Storage*>(call.grad_bias), plan.num_parts, p.out_channels,
                                   call.conv.stream);
}

}  // namespace cuda
}  // namespace tconv
