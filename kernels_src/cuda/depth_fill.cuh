// Slices of volumes that no tap in depth reaches (depth_walk.h): every output is the chain's answer to bias alone, and
// costs its store.
#pragma once

#include <algorithm>

#include "../epilogue.h"
#include "check.h"
#include "device_limits.h"
#include "fast_divisor.h"
#include "fill_run.cuh"
#ifdef TCONV_KEEPS_MASK
#include "output_mask.cuh"
#endif
#include "storage.cuh"

namespace tconv {
namespace cuda {

struct DepthFillConfig {
  static constexpr int kThreads = 256;
  static constexpr int64_t kOutputs = 16384;  // of a block at most: consecutive ones of a plane
  static constexpr int kBlocksPerSm = 8;      // launched
};

template <typename Storage>
struct DepthFillArgs {
  Storage* out;
  EpilogueArgs<Storage> epilogue;
#ifdef TCONV_KEEPS_MASK
  uint8_t* mask;  // as out, or null
#endif
  int64_t out_stride_n, out_stride_c, out_stride_d;
  int64_t plane, slices, out_channels, outputs_per_block, blocks_per_plane, num_blocks;
  FastDivisor64 by_blocks_per_plane, by_out_channels, by_slices;
};

template <typename Storage>
__global__ void __launch_bounds__(DepthFillConfig::kThreads)
    depth_fill_kernel(const __grid_constant__ DepthFillArgs<Storage> args) {
  using Config = DepthFillConfig;
  for (int64_t block = blockIdx.x; block < args.num_blocks; block += gridDim.x) {
    const int64_t plane = args.by_blocks_per_plane.quotient(block), part = block - plane * args.blocks_per_plane;
    const int64_t image = args.by_out_channels.quotient(plane), oc = plane - image * args.out_channels;
    const int64_t volume = args.by_slices.quotient(image), slice = image - volume * args.slices;
    const Storage value = to_storage<Storage>(apply_epilogue<float, Storage>(0.0f, args.epilogue, oc));
    Storage* const to = args.out + volume * args.out_stride_n + oc * args.out_stride_c + slice * args.out_stride_d;
    const int64_t first = part * args.outputs_per_block;
    fill_run(to + first, min(args.outputs_per_block, args.plane - first), value, threadIdx.x, Config::kThreads);
#ifdef TCONV_KEEPS_MASK
    if (args.mask == nullptr) continue;
    const uint8_t holds = condition_holds<Storage>(channel_bias<float>(args.epilogue, oc));
    fill_run(args.mask + (to - args.out) + first, min(args.outputs_per_block, args.plane - first), holds, threadIdx.x,
             Config::kThreads);
#endif
  }
}

template <typename Storage>
int64_t launch_depth_fill_typed(const ConvCall& call, void* out) {
  using Config = DepthFillConfig;
  const ConvTransposeLayer& p = call.layer;
  DeviceLimits device;
  TCONV_RETURN_IF_ERROR(query_device_limits(&device));
  DepthFillArgs<Storage> args{};
  args.out = static_cast<Storage*>(out);
  args.epilogue = make_epilogue_args<Storage>(call);
#ifdef TCONV_KEEPS_MASK
  args.mask = call.mask.to;
#endif
  args.out_stride_n = call.depth.out_stride_n;
  args.out_stride_c = call.depth.out_stride_c;
  args.out_stride_d = call.depth.out_stride_d;
  args.plane = p.out_h * p.out_w;
  args.slices = call.depth.slices;
  args.out_channels = p.out_channels;
  args.blocks_per_plane = (args.plane + Config::kOutputs - 1) / Config::kOutputs;
  args.outputs_per_block = (args.plane + args.blocks_per_plane - 1) / args.blocks_per_plane;
  args.num_blocks = args.blocks_per_plane * p.batch * p.out_channels;
  args.by_blocks_per_plane = FastDivisor64::make(args.blocks_per_plane);
  args.by_out_channels = FastDivisor64::make(p.out_channels);
  args.by_slices = FastDivisor64::make(call.depth.slices);
  const int64_t most = static_cast<int64_t>(device.sm_count) * Config::kBlocksPerSm;
  return launch_kernel(depth_fill_kernel<Storage>, dim3(static_cast<unsigned>(std::min(args.num_blocks, most))),
                       dim3(Config::kThreads), 0, call.stream, args);
}

inline int64_t launch_depth_fill(const ConvCall& call, void* out) {
  switch (call.dtype) {
#ifndef TCONV_WITHOUT_FP32
    case kFloat32: return launch_depth_fill_typed<float>(call, out);
#endif
#ifndef TCONV_WITHOUT_FP16
    case kFloat16: return launch_depth_fill_typed<__half>(call, out);
#endif
#ifndef TCONV_WITHOUT_BF16
    case kBFloat16: return launch_depth_fill_typed<__nv_bfloat16>(call, out);
#endif
    default: return kUnsupportedDType;
  }
}

}  // namespace cuda
}  // namespace tconv
