// Pixels for the gathered kernel (conv_transpose_gathered.cuh): of every pixel of x its channels side by side, in 16
// bits, those of a group filled up to whole blocks of 64 with zeros. fp32 becomes fp16 numbers: fp16_containers.cuh.
// A block takes 32 pixels of a block of channels: loaded pixel by pixel side by side, stored channel by channel.
#pragma once

#include <type_traits>

#include "conv_transpose_hopper_types.h"
#include "fast_divisor.h"
#include "fp16_containers.cuh"

namespace tconv {
namespace cuda {
namespace hopper {

using namespace tconv::hopper;

struct GatheredPixelsConfig {
  static constexpr int kPixels = 32, kThreads = 256;
  static constexpr int kChunks = kPixelBytes / 16;
  static_assert(kThreads == kPixels * kChunks, "a thread has a chunk of 8 channels of a pixel");
};

template <typename Storage>
struct GatheredPixelsArgs {
  const Storage* x;
  int64_t x_stride_n, x_stride_c, x_stride_h, x_stride_w;
#ifdef TCONV_WALKS_DEPTH
  FastDivisor by_depth;  // slices of a volume, which are images here; of an image 1
  int64_t x_stride_d;
#endif
  int pixels, channels, blocks;                              // pixels in all; channels and blocks of them, of a group
  FastDivisor by_image, by_width, by_blocks, by_all_blocks;  // pixels; blocks of a group, of all
  uint4* to;                                                 // [pixels][all blocks][8 chunks]
  GuardState* guard;
};

template <typename Storage>
__global__ void __launch_bounds__(GatheredPixelsConfig::kThreads)
    pack_gathered_pixels_kernel(const __grid_constant__ GatheredPixelsArgs<Storage> args) {
  using Config = GatheredPixelsConfig;
  __shared__ uint4 chunks[Config::kThreads];
  __shared__ uint32_t largest_of[Config::kChunks];
  const int run = static_cast<int>(args.by_all_blocks.quotient(blockIdx.x));
  const int all_blocks = static_cast<int>(args.by_all_blocks.divisor);
  const int of_all = static_cast<int>(blockIdx.x) - run * all_blocks;
  const int group = static_cast<int>(args.by_blocks.quotient(of_all)), block = of_all - group * args.blocks;
  const int lane = threadIdx.x % 32, chunk = threadIdx.x / 32;
  const int pixel = run * Config::kPixels + lane, channel = block * kBlockIC + chunk * 8;
  const int image = static_cast<int>(args.by_image.quotient(pixel));
  const int of_image = pixel - image * static_cast<int>(args.by_image.divisor);
  const int row = static_cast<int>(args.by_width.quotient(of_image));
  const int column = of_image - row * static_cast<int>(args.by_width.divisor);
#ifdef TCONV_WALKS_DEPTH
  const int volume = static_cast<int>(args.by_depth.quotient(image));
  const int slice = image - volume * static_cast<int>(args.by_depth.divisor);
  const Storage* const image_from = args.x + volume * args.x_stride_n + slice * args.x_stride_d;
#else
  const Storage* const image_from = args.x + image * args.x_stride_n;
#endif
  const Storage* from = image_from + row * args.x_stride_h + column * args.x_stride_w +
                        (static_cast<int64_t>(group) * args.channels + channel) * args.x_stride_c;
  Storage values[8];
#pragma unroll
  for (int k = 0; k < 8; ++k, from += args.x_stride_c)
    values[k] = pixel < args.pixels && channel + k < args.channels ? *from : static_cast<Storage>(0.0f);
  uint32_t words[4];
  if constexpr (sizeof(Storage) == 4) {
    const InputScale scale(args.guard);
    __half2 largest = __floats2half2_rn(0.0f, 0.0f);
#pragma unroll
    for (int k = 0; k < 4; ++k) words[k] = pack_scaled_inputs(values[2 * k], values[2 * k + 1], largest, scale.value);
    const uint32_t bits = *reinterpret_cast<const uint32_t*>(&largest);
    const uint32_t of_warp = __reduce_max_sync(0xFFFFFFFFu, max(bits & 0xFFFFu, bits >> 16));  // NaN above all
    if (lane == 0) largest_of[chunk] = of_warp;
  } else {
#pragma unroll
    for (int k = 0; k < 4; ++k) words[k] = pack_pair(values[2 * k], values[2 * k + 1]);
  }
  chunks[lane * Config::kChunks + (chunk ^ lane % 8)] = make_uint4(words[0], words[1], words[2], words[3]);
  __syncthreads();
  if constexpr (sizeof(Storage) == 4) {
    // Of all the block's channels, since a sum has products of all.
    uint32_t most = 0;
#pragma unroll
    for (int i = 0; i < Config::kChunks; ++i) most = max(most, largest_of[i]);
    const uint32_t pair = most << 16 | most;
    const float smallest_exact = InputScale(args.guard).smallest_exact;
    guard_range(*reinterpret_cast<const __half2*>(&pair), args.guard, smallest_exact, [&](auto&& inspect) {
#pragma unroll
      for (int k = 0; k < 8; ++k) inspect(values[k]);
    });
  }
  const int nth = threadIdx.x / Config::kChunks, of_pixel = threadIdx.x % Config::kChunks;
  const int stored = run * Config::kPixels + nth;
  if (stored < args.pixels)
    args.to[(static_cast<int64_t>(stored) * all_blocks + of_all) * Config::kChunks + of_pixel] =
        chunks[nth * Config::kChunks + (of_pixel ^ nth % 8)];
}

}  // namespace hopper
}  // namespace cuda
}  // namespace tconv
