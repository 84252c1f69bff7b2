// Host side of the portable tensor-core kernel: what it can do, how much scratch it wants, its launches.
#pragma once

#include "check.h"
#include "conv_transpose_mma.cuh"
#include "device_limits.h"

namespace tconv {
namespace cuda {

// Indices within a channel's plane are 32-bit in this kernel (offsets of samples and channels are 64-bit).
inline bool mma_can_index(const ConvTransposeProblem& p) {
  constexpr int64_t kLimit = int64_t{1} << 30;
  const int64_t small[] = {p.in_channels, p.out_channels, p.in_h, p.in_w, p.out_h, p.out_w, p.stride_h, p.stride_w,
                           p.padding_h, p.padding_w, p.kernel_h * p.kernel_w * p.in_channels, p.kernel_h * p.dilation_h,
                           p.kernel_w * p.dilation_w, p.out_h * p.out_w};
  for (const int64_t value : small)
    if (value > kLimit) return false;
  const int64_t strides[] = {p.x_stride_c, p.x_stride_h, p.x_stride_w};
  for (const int64_t stride : strides)
    if (stride > INT32_MAX) return false;
  return (p.in_h - 1) * p.x_stride_h + (p.in_w - 1) * p.x_stride_w <= INT32_MAX;
}

// The part of products spent on real channels, the rest being padding to whole blocks.
template <typename Config>
double mma_useful_fraction(const ConvTransposeProblem& p) {
  const int64_t oc = p.out_channels / p.groups, ic = p.in_channels / p.groups;
  return static_cast<double>(oc * ic) /
         static_cast<double>(round_up(oc, Config::BLOCK_OC) * round_up(ic, Config::BLOCK_IC));
}

inline TileLimits tile_limits(const DeviceLimits& device) {
  return {device.sm_count, device.smem_per_block, device.smem_per_sm, device.smem_reserved_per_block};
}

// Tiles per position of the tile grid.
template <typename Config>
int64_t mma_tiles_elsewhere(const ConvTransposeProblem& p) {
  return p.batch * p.stride_h * p.stride_w * p.groups * ceil_div(p.out_channels / p.groups, Config::BLOCK_OC);
}

inline int64_t mma_num_partials(const ConvTransposeProblem& p, const TileGeometry& g) {
  return p.stride_h * p.stride_w * g.tiles_h * g.tiles_w;
}

template <typename Config>
int64_t mma_weight_tiles(const ConvTransposeProblem& p) {
  return p.groups * ceil_div(p.out_channels / p.groups, Config::BLOCK_OC) *
         ceil_div(p.in_channels / p.groups, Config::BLOCK_IC) * p.kernel_h * p.kernel_w;
}

// Workspace: the phase table, the weight stream; for containers also the channels' inverse scales and the guard.
template <typename Config>
struct MmaWorkspace {
  int64_t stream_at, scales_at, guard_at, total_bytes;

  explicit MmaWorkspace(const ConvTransposeProblem& p) {
    stream_at = round_up((p.stride_h + p.stride_w) * static_cast<int64_t>(sizeof(AxisPhase)), 256);
    scales_at = stream_at + mma_weight_tiles<Config>(p) * Config::WEIGHT_TILE_BYTES;
    guard_at = scales_at + (Config::kContainers ? round_up(p.out_channels * static_cast<int64_t>(sizeof(float)), 256) : 0);
    total_bytes = guard_at + (Config::kContainers ? 256 : 0);
  }
  AxisPhase* phases(void* base) const { return static_cast<AxisPhase*>(base); }
  unsigned char* stream(void* base) const { return static_cast<unsigned char*>(base) + stream_at; }
  float* scales(void* base) const { return reinterpret_cast<float*>(static_cast<char*>(base) + scales_at); }
  GuardState* guard(void* base) const { return reinterpret_cast<GuardState*>(static_cast<char*>(base) + guard_at); }
};

// The scales of an fp32 call's containers, its guard cleared before.
template <typename Config>
int64_t launch_weight_scales(const ConvCall& call, const MmaWorkspace<Config>& layout, void* workspace) {
  const cudaError_t cleared = cudaMemsetAsync(layout.guard(workspace), 0, sizeof(GuardState), static_cast<cudaStream_t>(call.stream));
  if (cleared != cudaSuccess) return static_cast<int64_t>(cleared);
  return launch_kernel(find_weight_scales_kernel, dim3(static_cast<unsigned>(call.problem.out_channels)),
                       dim3(kWeightScaleThreads), 0, call.stream, call.problem, static_cast<const float*>(call.weight),
                       layout.scales(workspace), layout.guard(workspace));
}

// only_if: null, or a flag on the device; where it holds 0 by then, nothing is done (the fallback of a faster kernel).
// Containers raise the guard in the workspace where the caller must run another kernel over the same outputs.
template <typename Config>
int64_t launch_mma(const ConvCall& call, const TileGeometry& geometry, void* out, Moments* partials, void* workspace,
                   const int* only_if = nullptr) {
  using Storage = typename NumericTraits<Config::kNumeric>::Storage;
  const ConvTransposeProblem& p = call.problem;
  const MmaWorkspace<Config> layout(p);
  if constexpr (Config::kContainers) TCONV_RETURN_IF_ERROR(launch_weight_scales(call, layout, workspace));

  WeightTransformParams<Storage> transform;
  transform.problem = p;
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
  transform.num_fragments = mma_weight_tiles<Config>(p) * (Config::WEIGHT_PIECE_BYTES / 16);
  const int64_t transform_blocks = ceil_div(transform.num_fragments, 256);
  constexpr int64_t kMaxTransformBlocks = 65535;
  TCONV_RETURN_IF_ERROR(launch_overlapped(
      transform_weights_kernel<Config>,
      dim3(static_cast<unsigned>(transform_blocks < kMaxTransformBlocks ? transform_blocks : kMaxTransformBlocks)),
      dim3(256), 0, call.stream, transform));

  MmaParams<Storage> params;
  params.x = static_cast<const Storage*>(call.x);
  params.weight_stream = layout.stream(workspace);
  params.phases = layout.phases(workspace);
  params.inv_scale = layout.scales(workspace);
  params.guard = layout.guard(workspace);
  params.out = static_cast<Storage*>(out);
  params.partials = partials;
  params.only_if = only_if;
  params.epilogue = make_epilogue_args<Storage>(call);
  params.tile = geometry;
  params.by_window_pitch = FastDivisor::make(static_cast<uint32_t>(geometry.window_pitch));
  params.by_line_width = FastDivisor::make(static_cast<uint32_t>(geometry.line_width));
  params.x_stride_n = p.x_stride_n;
  params.out_plane = p.out_h * p.out_w;
  params.x_stride_c = static_cast<int>(p.x_stride_c);
  params.x_stride_h = static_cast<int>(p.x_stride_h);
  params.x_stride_w = static_cast<int>(p.x_stride_w);
  params.in_h = static_cast<int>(p.in_h);
  params.in_w = static_cast<int>(p.in_w);
  params.out_w = static_cast<int>(p.out_w);
  params.kernel_h = static_cast<int>(p.kernel_h);
  params.kernel_w = static_cast<int>(p.kernel_w);
  params.stride_h = static_cast<int>(p.stride_h);
  params.stride_w = static_cast<int>(p.stride_w);
  params.groups = static_cast<int>(p.groups);
  params.ic_per_group = static_cast<int>(p.in_channels / p.groups);
  params.oc_per_group = static_cast<int>(p.out_channels / p.groups);
  params.num_ic_blocks = transform.num_ic_blocks;
  params.num_oc_blocks = transform.num_oc_blocks;
  TCONV_RETURN_IF_ERROR(allow_dynamic_smem(conv_transpose_mma_kernel<Config>, geometry.smem_bytes));
  const int64_t num_tiles = p.batch * p.groups * mma_num_partials(p, geometry) * transform.num_oc_blocks;
  params.num_tiles = static_cast<unsigned>(num_tiles);
  // One block per tile lets the hardware balance; a launch that may do nothing starts only as many as run at once.
  int64_t grid = num_tiles;
  if (only_if != nullptr) {
    DeviceLimits device;
    TCONV_RETURN_IF_ERROR(query_device_limits(&device));
    const int64_t resident = static_cast<int64_t>(device.sm_count) * Config::kMinBlocksPerSm;
    if (resident < grid) grid = resident;
  }
  return launch_overlapped(conv_transpose_mma_kernel<Config>, dim3(static_cast<unsigned>(grid)), dim3(Config::kNumThreads),
                           geometry.smem_bytes, call.stream, params);
}

}  // namespace cuda
}  // namespace tconv
