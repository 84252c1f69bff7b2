// Calls whose images are slices of volumes (depth_walk.h): the kernel behind the Hopper convolution, one thread per
// output, in fp32. It computes again what fp16 containers could not hold.
#pragma once

#include <algorithm>

#include "../epilogue.h"
#include "check.h"
#include "conv_transpose_plain.cuh"
#include "depth_fill.cuh"
#include "device_limits.h"
#include "fast_divisor.h"
#ifdef TCONV_KEEPS_MASK
#include "output_mask.cuh"
#endif
#include "storage.cuh"

namespace tconv {
namespace cuda {

struct DepthPlainConfig {
  static constexpr int kPixels = 256;        // of a block: consecutive outputs of one plane
  static constexpr int kBlocksPerSm = 8;     // launched
  static constexpr int kMinBlocksPerSm = 2;  // room for 64-bit addresses; more would spill
};

template <typename Storage>
struct DepthPlainArgs {
  ConvTransposeLayer layer;
  DepthWalk depth;
  const Storage* x;
  const Storage* weight;
  Storage* out;
  EpilogueArgs<Storage> epilogue;
#ifdef TCONV_JOINS_QUADS
  Storage* joined_out;  // null, or the chain's operand is read here, whose results begin there,
  const Storage* from;  // and what they are made of here
#endif
#ifdef TCONV_KEEPS_MASK
  uint8_t* mask;  // as out, or null
#endif
  const int* guard;  // null: always; else only where it is raised
  int64_t tap_channels, oc_per_group, blocks_per_plane, num_blocks;
  int64_t firsts[kMostResidues], kernel_firsts[kMostResidues];  // by residue
  FastDivisor64 by_blocks_per_plane, by_out_channels, by_oc_per_group, by_slices, by_residues, by_out_w, by_stride_h,
      by_stride_w;
};

template <typename Storage>
__device__ __forceinline__ float depth_plain_sum(const DepthPlainArgs<Storage>& args, int residue, int64_t volume,
                                                 int64_t slice, int64_t oc, int64_t oh, int64_t ow) {
  const ConvTransposeLayer& p = args.layer;
  const int64_t oc_per_group = args.oc_per_group, group = args.by_oc_per_group.quotient(oc);
  const int64_t plane = p.kernel_h * p.kernel_w, run = args.depth.kernel_depth * plane;
  const Storage* const x = args.x + volume * args.depth.x_stride_n + group * args.tap_channels * p.x_stride_c;
  const Storage* const weight =
      args.weight + (group * args.tap_channels * oc_per_group + (oc - group * oc_per_group)) * run;
  float sum = 0.0f;
  for (int64_t t = 0; t < args.depth.taps; ++t) {
    const int64_t read = slice + args.firsts[residue] + t * args.depth.step;
    if (read < 0 || read >= args.depth.in_depth) continue;
    for (int64_t kh = 0; kh < p.kernel_h; ++kh) {
      const int64_t ih = tap_source(oh + p.padding_h - kh * p.dilation_h, p.in_h, p.stride_h, args.by_stride_h);
      if (ih < 0) continue;
      for (int64_t kw = 0; kw < p.kernel_w; ++kw) {
        const int64_t iw = tap_source(ow + p.padding_w - kw * p.dilation_w, p.in_w, p.stride_w, args.by_stride_w);
        if (iw < 0) continue;
        const Storage* pixel = x + read * args.depth.x_stride_d + ih * p.x_stride_h + iw * p.x_stride_w;
        const Storage* tap =
            weight + (args.kernel_firsts[residue] - t * args.depth.kernel_step) * plane + kh * p.kernel_w + kw;
        for (int64_t c = 0; c < args.tap_channels; ++c, pixel += p.x_stride_c, tap += oc_per_group * run)
          sum = fmaf(static_cast<float>(*pixel), static_cast<float>(*tap), sum);
      }
    }
  }
  return sum;
}

template <typename Storage>
__global__ void __launch_bounds__(DepthPlainConfig::kPixels, DepthPlainConfig::kMinBlocksPerSm)
    depth_plain_kernel(const __grid_constant__ DepthPlainArgs<Storage> args) {
  if (args.guard != nullptr && *args.guard == 0) return;
  const ConvTransposeLayer& p = args.layer;
  for (int64_t block = blockIdx.x; block < args.num_blocks; block += gridDim.x) {
    const int64_t plane = args.by_blocks_per_plane.quotient(block), part = block - plane * args.blocks_per_plane;
    const int64_t image = args.by_out_channels.quotient(plane), oc = plane - image * p.out_channels;
    const int64_t of_residue = args.by_residues.quotient(image);
    const int residue = static_cast<int>(image - of_residue * (args.depth.more_residues + 1));
    const int64_t volume = args.by_slices.quotient(of_residue), slice = of_residue - volume * args.depth.slices;
    const int64_t pixel = part * DepthPlainConfig::kPixels + threadIdx.x;
    if (pixel >= p.out_h * p.out_w) continue;
    const int64_t oh = args.by_out_w.quotient(pixel), ow = pixel - oh * p.out_w;
    const float sum = depth_plain_sum(args, residue, volume, slice, oc, oh, ow);
    Storage* const to = args.out + volume * args.depth.out_stride_n + oc * args.depth.out_stride_c +
                        slice * args.depth.out_stride_d + residue * p.out_h * p.out_w;
    const Storage stored = to_storage<Storage>(apply_epilogue<float, Storage>(sum, args.epilogue, oc));
    to[pixel] = stored;
#ifdef TCONV_KEEPS_MASK
    if (args.mask != nullptr)
      args.mask[to - args.out + pixel] = condition_holds<Storage>(sum + channel_bias<float>(args.epilogue, oc));
#endif
#ifdef TCONV_JOINS_QUADS
    if (args.joined_out != nullptr) {
      const int64_t at = to - args.from + pixel;
      args.joined_out[at] = to_storage<Storage>(Epilogue::join<float, Storage>(
          static_cast<float>(stored), args.epilogue, oc, args.epilogue.channel_vectors, at));
    }
#endif
  }
}

template <typename Storage>
int64_t launch_depth_plain_typed(const ConvCall& call, void* out, const int* guard) {
  const ConvTransposeLayer& p = call.layer;
  DeviceLimits device;
  TCONV_RETURN_IF_ERROR(query_device_limits(&device));
  DepthPlainArgs<Storage> args{};
  args.layer = p;
  args.depth = call.depth;
  args.x = static_cast<const Storage*>(call.x);
  args.weight = static_cast<const Storage*>(call.weight);
  args.out = static_cast<Storage*>(out);
  args.epilogue = make_epilogue_args<Storage>(call);
  args.guard = guard;
#ifdef TCONV_JOINS_QUADS
  args.joined_out = call.joined.at_once ? static_cast<Storage*>(call.joined.out) : nullptr;
  args.from = static_cast<const Storage*>(call.joined.from);
#endif
#ifdef TCONV_KEEPS_MASK
  args.mask = call.mask.to;
#endif
  args.tap_channels = call.depth.taps > 0 ? p.in_channels / p.groups / call.depth.taps : 0;
  args.blocks_per_plane = (p.out_h * p.out_w + DepthPlainConfig::kPixels - 1) / DepthPlainConfig::kPixels;
  args.num_blocks = args.blocks_per_plane * p.batch * p.out_channels * call.depth.residues();
  for (int i = 0; i < call.depth.residues(); ++i) {
    args.firsts[i] = call.depth.first_of(i);
    args.kernel_firsts[i] = call.depth.kernel_first_of(i);
  }
  args.by_residues = FastDivisor64::make(call.depth.residues());
  args.by_blocks_per_plane = FastDivisor64::make(args.blocks_per_plane);
  args.by_out_channels = FastDivisor64::make(p.out_channels);
  args.oc_per_group = p.out_channels / p.groups;
  args.by_oc_per_group = FastDivisor64::make(args.oc_per_group);
  args.by_slices = FastDivisor64::make(call.depth.slices);
  args.by_out_w = FastDivisor64::make(p.out_w);
  args.by_stride_h = FastDivisor64::make(p.stride_h);
  args.by_stride_w = FastDivisor64::make(p.stride_w);
  const int64_t most = static_cast<int64_t>(device.sm_count) * DepthPlainConfig::kBlocksPerSm;
  return launch_kernel(depth_plain_kernel<Storage>, dim3(static_cast<unsigned>(std::min(args.num_blocks, most))),
                       dim3(DepthPlainConfig::kPixels), 0, call.stream, args);
}

// All outputs, or with `guard`, on the device, only where it is raised.
inline int64_t launch_depth_plain(const ConvCall& call, void* out, const int* guard) {
  if (call.depth.taps == 0) return launch_depth_fill(call, out);
  switch (call.dtype) {
#ifndef TCONV_WITHOUT_FP32
    case kFloat32: return launch_depth_plain_typed<float>(call, out, guard);
#endif
#ifndef TCONV_WITHOUT_FP16
    case kFloat16: return launch_depth_plain_typed<__half>(call, out, guard);
#endif
#ifndef TCONV_WITHOUT_BF16
    case kBFloat16: return launch_depth_plain_typed<__nv_bfloat16>(call, out, guard);
#endif
    default: return kUnsupportedDType;
  }
}

}  // namespace cuda
}  // namespace tconv
