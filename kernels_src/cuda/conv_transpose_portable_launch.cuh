// Host side of the portable tensor-core kernel: what it can do, how much scratch it wants, its launches.
#pragma once

#include "check.h"
#include "conv_transpose_portable.cuh"
#include "device_limits.h"
#ifdef TCONV_IN_PARTS
#include "dtype_parts.h"
#endif

namespace tconv {
namespace cuda {

// Indices within a channel's plane are 32-bit in this kernel (offsets of samples and channels are 64-bit).
inline bool fits_32_bit_indices(const ConvTransposeLayer& p) {
  constexpr int64_t kLimit = int64_t{1} << 30;
  const int64_t small[] = {p.in_channels,
                           p.out_channels,
                           p.in_h,
                           p.in_w,
                           p.out_h,
                           p.out_w,
                           p.stride_h,
                           p.stride_w,
                           p.padding_h,
                           p.padding_w,
                           p.kernel_h * p.kernel_w * p.in_channels,
                           p.kernel_h * p.dilation_h,
                           p.kernel_w * p.dilation_w,
                           p.out_h * p.out_w};
  for (const int64_t value : small)
    if (value > kLimit) return false;
  const int64_t strides[] = {p.x_stride_c, p.x_stride_h, p.x_stride_w};
  for (const int64_t stride : strides)
    if (stride > INT32_MAX) return false;
  return (p.in_h - 1) * p.x_stride_h + (p.in_w - 1) * p.x_stride_w <= INT32_MAX;
}

// The part of products spent on real channels, the rest being padding to whole blocks.
template <typename Config>
double portable_useful_fraction(const ConvTransposeLayer& p) {
  const int64_t oc = p.out_channels / p.groups, ic = p.in_channels / p.groups;
  return static_cast<double>(oc * ic) /
         static_cast<double>(round_up(oc, Config::BLOCK_OC) * round_up(ic, Config::BLOCK_IC));
}

inline TileLimits tile_limits(const DeviceLimits& device) {
  return {device.sm_count, device.smem_per_block, device.smem_per_sm, device.smem_reserved_per_block};
}

// Tiles per position of the tile grid.
template <typename Config>
int64_t portable_tiles_elsewhere(const ConvTransposeLayer& p) {
  return p.batch * p.stride_h * p.stride_w * p.groups * ceil_div(p.out_channels / p.groups, Config::BLOCK_OC);
}

inline int64_t portable_num_partials(const ConvTransposeLayer& p, const TileGeometry& g) {
  return p.stride_h * p.stride_w * g.tiles_h * g.tiles_w;
}

template <typename Config>
int64_t portable_weight_tiles(const ConvTransposeLayer& p) {
  return p.groups * ceil_div(p.out_channels / p.groups, Config::BLOCK_OC) *
         ceil_div(p.in_channels / p.groups, Config::BLOCK_IC) * p.kernel_h * p.kernel_w;
}

// Workspace: the phase table, the weight stream; for containers also the channels' inverse scales and the guard.
template <typename Config>
struct PortableWorkspace {
  int64_t stream_at, scales_at, guard_at, total_bytes;

  explicit PortableWorkspace(const ConvTransposeLayer& p) {
    stream_at = round_up((p.stride_h + p.stride_w) * static_cast<int64_t>(sizeof(AxisPhase)), 256);
    scales_at = stream_at + portable_weight_tiles<Config>(p) * Config::WEIGHT_TILE_BYTES;
    guard_at =
        scales_at + (Config::kContainers ? round_up(p.out_channels * static_cast<int64_t>(sizeof(float)), 256) : 0);
    total_bytes = guard_at + (Config::kContainers ? 256 : 0);
  }
  AxisPhase* phases(void* base) const { return static_cast<AxisPhase*>(base); }
  unsigned char* stream(void* base) const { return static_cast<unsigned char*>(base) + stream_at; }
  float* scales(void* base) const { return reinterpret_cast<float*>(static_cast<char*>(base) + scales_at); }
  GuardState* guard(void* base) const { return reinterpret_cast<GuardState*>(static_cast<char*>(base) + guard_at); }
};

// The scales of an fp32 call's containers, its guard cleared before.
template <typename Config>
int64_t launch_weight_scales(const ConvCall& call, const PortableWorkspace<Config>& layout, void* workspace) {
  const cudaError_t cleared =
      cudaMemsetAsync(layout.guard(workspace), 0, sizeof(GuardState), static_cast<cudaStream_t>(call.stream));
  if (cleared != cudaSuccess) return static_cast<int64_t>(cleared);
  return launch_kernel(find_weight_scales_kernel, dim3(static_cast<unsigned>(call.layer.out_channels)),
                       dim3(kWeightScaleThreads), 0, call.stream, call.layer, static_cast<const float*>(call.weight),
                       layout.scales(workspace), layout.guard(workspace));
}

// only_if: null, or a flag on the device; where it holds 0 by then, nothing is done (the fallback of a faster kernel).
// Containers raise the guard in the workspace where the caller must run another kernel over the same outputs.
template <typename Config>
int64_t launch_portable(const ConvCall& call, const TileGeometry& geometry, void* out, Moments* partials,
                        void* workspace, const int* only_if = nullptr) {
  using Storage = typename NumericTraits<Config::kNumeric>::Storage;
  const ConvTransposeLayer& p = call.layer;
  const PortableWorkspace<Config> layout(p);
  if constexpr (Config::kContainers) TCONV_RETURN_IF_ERROR(launch_weight_scales(call, layout, workspace));

  WeightTransformArgs<Storage> transform;
  transform.layer = p;
  transform.weight = static_cast<const Storage*>(call.weight);
  transform.stream = reinterpret_cast<uint4*>(layout.stream(workspace));
  transform.phases = layout.phases(workspace);
  transform.inv_scale = layout.scales(workspace);
  transform.only_if = only_if;
  transform.group_h = geometry.group_h;
  transform.group_w = geometry.group_w;
  transform.tap_step_h = static_cast<int>(p.stride_h / gcd(p.stride_h, p.dilation_h));
  transform.tap_step_w = static_cast<int>(p.stride_w / gcd(p.stride_w, p.dilation_w));
  transform.num_ic_blocks = static_cast<int>(ceil_div(p.in_channels / p.groups, Config::BLOCK_IC));
  transform.num_oc_blocks = static_cast<int>(ceil_div(p.out_channels / p.groups, Config::BLOCK_OC));
  transform.num_fragments = portable_weight_tiles<Config>(p) * (Config::WEIGHT_PIECE_BYTES / 16);
  const int64_t transform_blocks = ceil_div(transform.num_fragments, 256);
  constexpr int64_t kMaxTransformBlocks = 65535;
  TCONV_RETURN_IF_ERROR(launch_overlapped(
      transform_weights_portable_kernel<Config>,
      dim3(static_cast<unsigned>(transform_blocks < kMaxTransformBlocks ? transform_blocks : kMaxTransformBlocks)),
      dim3(256), 0, call.stream, transform));

  PortableArgs<Storage> args;
  args.x = static_cast<const Storage*>(call.x);
  args.weight_stream = layout.stream(workspace);
  args.phases = layout.phases(workspace);
  args.inv_scale = layout.scales(workspace);
  args.guard = layout.guard(workspace);
  args.out = static_cast<Storage*>(out);
  args.partials = partials;
  args.only_if = only_if;
  args.epilogue = make_epilogue_args<Storage>(call);
  args.tile = geometry;
  args.by_window_pitch = FastDivisor::make(static_cast<uint32_t>(geometry.window_pitch));
  args.by_line_width = FastDivisor::make(static_cast<uint32_t>(geometry.line_width));
  args.x_stride_n = p.x_stride_n;
  args.out_plane = p.out_h * p.out_w;
  args.x_stride_c = static_cast<int>(p.x_stride_c);
  args.x_stride_h = static_cast<int>(p.x_stride_h);
  args.x_stride_w = static_cast<int>(p.x_stride_w);
  args.in_h = static_cast<int>(p.in_h);
  args.in_w = static_cast<int>(p.in_w);
  args.out_w = static_cast<int>(p.out_w);
  args.kernel_h = static_cast<int>(p.kernel_h);
  args.kernel_w = static_cast<int>(p.kernel_w);
  args.stride_h = static_cast<int>(p.stride_h);
  args.stride_w = static_cast<int>(p.stride_w);
  args.groups = static_cast<int>(p.groups);
  args.ic_per_group = static_cast<int>(p.in_channels / p.groups);
  args.oc_per_group = static_cast<int>(p.out_channels / p.groups);
  args.num_ic_blocks = transform.num_ic_blocks;
  args.num_oc_blocks = transform.num_oc_blocks;
  TCONV_RETURN_IF_ERROR(allow_dynamic_smem(conv_transpose_portable_kernel<Config>, geometry.smem_bytes));
  const int64_t num_tiles = p.batch * p.groups * portable_num_partials(p, geometry) * transform.num_oc_blocks;
  args.num_tiles = static_cast<unsigned>(num_tiles);
  // One block per tile lets the hardware balance; a launch that may do nothing starts only as many as run at once.
  int64_t grid = num_tiles;
  if (only_if != nullptr) {
    DeviceLimits device;
    TCONV_RETURN_IF_ERROR(query_device_limits(&device));
    const int64_t resident = static_cast<int64_t>(device.sm_count) * Config::kMinBlocksPerSm;
    if (resident < grid) grid = resident;
  }
  return launch_overlapped(conv_transpose_portable_kernel<Config>, dim3(static_cast<unsigned>(grid)),
                           dim3(Config::kNumThreads), geometry.smem_bytes, call.stream, args);
}
#ifdef TCONV_IN_PARTS
TCONV_LEFT_OUT_FP32(launch_portable<PortableConfig<Numeric::kTF32>>, const ConvCall&, const TileGeometry&, void*,
                    Moments*, void*, const int*)
TCONV_LEFT_OUT_FP32(launch_portable<PortableConfig<Numeric::kStrictFP32>>, const ConvCall&, const TileGeometry&, void*,
                    Moments*, void*, const int*)
TCONV_LEFT_OUT_FP16(launch_portable<PortableConfig<Numeric::kFP16>>, const ConvCall&, const TileGeometry&, void*,
                    Moments*, void*, const int*)
TCONV_LEFT_OUT_BF16(launch_portable<PortableConfig<Numeric::kBF16>>, const ConvCall&, const TileGeometry&, void*,
                    Moments*, void*, const int*)
#endif

}  // namespace cuda
}  // namespace tconv
