// Transposed convolution, one thread per output: the formula of layer.h as it stands, for every dtype (fp64
// accumulates in double, the rest in float), every parameter, any input strides, 64-bit indices.
//
// A block owns kPlainPixels consecutive positions of one output plane, so a plane's moments are one partial per block.
#pragma once

#include <type_traits>

#include "../epilogue.h"
#include "../moments.h"
#include "check.h"
#ifdef TCONV_IN_PARTS
#include "dtype_parts.h"
#endif
#include "fast_divisor.h"
#include "mma_sync.cuh"
#include "storage.cuh"

namespace tconv {
namespace cuda {

constexpr int kPlainPixels = 256;
constexpr int kPlainMinBlocksPerSm = 3;  // room for 64-bit addresses; more blocks would spill

template <typename Storage>
struct PlainArgs {
  ConvTransposeLayer layer;
  const Storage* x;
  const Storage* weight;
  Storage* out;
  Moments* partials;  // or null
  EpilogueArgs<Storage> epilogue;
  bool round_operands;  // fp32 in TF32 mode: the same operands as the tensor-core kernels
  int64_t oc_per_group, ic_per_group, blocks_per_plane, num_blocks;
  FastDivisor64 by_blocks_per_plane, by_out_channels, by_oc_per_group, by_out_w, by_stride_h, by_stride_w;
};

inline int64_t plain_blocks_per_plane(const ConvTransposeLayer& p) {
  return (p.out_h * p.out_w + kPlainPixels - 1) / kPlainPixels;
}

// Input coordinate that a tap with this numerator (layer.h) contributes, or -1.
__device__ __forceinline__ int64_t tap_source(int64_t numerator, int64_t in, int64_t stride,
                                              const FastDivisor64& by_stride) {
  if (numerator < 0) return -1;
  const int64_t i = by_stride.quotient(numerator);
  return i * stride == numerator && i < in ? i : -1;
}

template <typename Storage, bool kRound>
__device__ __forceinline__ typename StorageTraits<Storage>::Acc plain_operand(Storage v) {
  using Acc = typename StorageTraits<Storage>::Acc;
  if constexpr (kRound)
    return __uint_as_float(round_to_tf32(v));
  else
    return static_cast<Acc>(v);
}

template <typename Storage, bool kRound>
__device__ __forceinline__ typename StorageTraits<Storage>::Acc plain_output(const PlainArgs<Storage>& args, int64_t n,
                                                                             int64_t oc, int64_t oh, int64_t ow) {
  using Acc = typename StorageTraits<Storage>::Acc;
  const ConvTransposeLayer& p = args.layer;
  const int64_t oc_per_group = args.oc_per_group, ic_per_group = args.ic_per_group;
  const int64_t group = args.by_oc_per_group.quotient(oc), taps = p.kernel_h * p.kernel_w;
  const Storage* const x = args.x + n * p.x_stride_n + group * ic_per_group * p.x_stride_c;
  const Storage* const weight =
      args.weight + (group * ic_per_group * oc_per_group + (oc - group * oc_per_group)) * taps;
  Acc acc = 0;
  for (int64_t kh = 0; kh < p.kernel_h; ++kh) {
    const int64_t ih = tap_source(oh + p.padding_h - kh * p.dilation_h, p.in_h, p.stride_h, args.by_stride_h);
    if (ih < 0) continue;
    for (int64_t kw = 0; kw < p.kernel_w; ++kw) {
      const int64_t iw = tap_source(ow + p.padding_w - kw * p.dilation_w, p.in_w, p.stride_w, args.by_stride_w);
      if (iw < 0) continue;
      const Storage* pixel = x + ih * p.x_stride_h + iw * p.x_stride_w;
      const Storage* tap = weight + kh * p.kernel_w + kw;
      for (int64_t ic = 0; ic < ic_per_group; ++ic, pixel += p.x_stride_c, tap += oc_per_group * taps)
        acc += plain_operand<Storage, kRound>(*pixel) * plain_operand<Storage, kRound>(*tap);
    }
  }
  return acc;
}

// Sum over the block, the same in every thread; `scratch` holds one value per warp.
template <typename Acc>
__device__ __forceinline__ Acc block_sum(Acc v, Acc* scratch) {
  for (int distance = 16; distance > 0; distance /= 2) v += __shfl_xor_sync(0xffffffffu, v, distance);
  __syncthreads();
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
  __syncthreads();
  Acc total = 0;
  for (int i = 0; i < kPlainPixels / 32; ++i) total += scratch[i];
  return total;
}

template <typename Storage>
__global__ void __launch_bounds__(kPlainPixels, kPlainMinBlocksPerSm)
    conv_transpose_plain_kernel(const __grid_constant__ PlainArgs<Storage> args) {
  using Acc = typename StorageTraits<Storage>::Acc;
  __shared__ Acc scratch[kPlainPixels / 32];
  const ConvTransposeLayer& p = args.layer;
  const int64_t plane = p.out_h * p.out_w;
  for (int64_t block = blockIdx.x; block < args.num_blocks; block += gridDim.x) {
    const int64_t image = args.by_blocks_per_plane.quotient(block), part = block - image * args.blocks_per_plane;
    const int64_t n = args.by_out_channels.quotient(image), oc = image - n * p.out_channels;
    const int64_t pixel = part * kPlainPixels + threadIdx.x;
    const bool valid = pixel < plane;
    Acc v = 0;
    if (valid) {
      const int64_t oh = args.by_out_w.quotient(pixel), ow = pixel - oh * p.out_w;
      if constexpr (std::is_same_v<Storage, float>)
        v = args.round_operands ? plain_output<Storage, true>(args, n, oc, oh, ow)
                                : plain_output<Storage, false>(args, n, oc, oh, ow);
      else
        v = plain_output<Storage, false>(args, n, oc, oh, ow);
      v = apply_epilogue<Acc, Storage>(v, args.epilogue, oc);
      args.out[image * plane + pixel] = to_storage<Storage>(v);
    }
    if (args.partials != nullptr) {
      const Acc count = static_cast<Acc>(min(static_cast<int64_t>(kPlainPixels), plane - part * kPlainPixels));
      const Acc mean = block_sum<Acc>(v, scratch) / count;
      const Acc deviation = valid ? v - mean : Acc(0);
      const Acc m2 = block_sum<Acc>(deviation * deviation, scratch);
      if (threadIdx.x == 0)
        args.partials[(n * args.blocks_per_plane + part) * p.out_channels + oc] =
            Moments{static_cast<float>(count), static_cast<float>(mean), static_cast<float>(m2)};
    }
  }
}

template <typename Storage>
int64_t launch_plain(const ConvCall& call, void* out, Moments* partials) {
  PlainArgs<Storage> args;
  args.layer = call.layer;
  args.x = static_cast<const Storage*>(call.x);
  args.weight = static_cast<const Storage*>(call.weight);
  args.out = static_cast<Storage*>(out);
  args.partials = partials;
  args.epilogue = make_epilogue_args<Storage>(call);
  args.round_operands = call.math == kMathTF32;
  args.blocks_per_plane = plain_blocks_per_plane(call.layer);
  const ConvTransposeLayer& p = call.layer;
  args.num_blocks = args.blocks_per_plane * p.batch * p.out_channels;
  args.oc_per_group = p.out_channels / p.groups;
  args.ic_per_group = p.in_channels / p.groups;
  args.by_blocks_per_plane = FastDivisor64::make(args.blocks_per_plane);
  args.by_out_channels = FastDivisor64::make(p.out_channels);
  args.by_oc_per_group = FastDivisor64::make(args.oc_per_group);
  args.by_out_w = FastDivisor64::make(p.out_w);
  args.by_stride_h = FastDivisor64::make(p.stride_h);
  args.by_stride_w = FastDivisor64::make(p.stride_w);
  const int64_t grid = args.num_blocks < INT32_MAX ? args.num_blocks : INT32_MAX;
  return launch_kernel(conv_transpose_plain_kernel<Storage>, dim3(static_cast<unsigned>(grid)), dim3(kPlainPixels), 0,
                       call.stream, args);
}
#ifdef TCONV_IN_PARTS
TCONV_LEFT_OUT_STORAGE(launch_plain, const ConvCall&, void*, Moments*)
#endif

}  // namespace cuda
}  // namespace tconv
