// Host side of the interleaved kernel: for which layers it is, how it cuts one, its launch.
#pragma once

#include <algorithm>

#include "check.h"
#ifdef TCONV_WALKS_DEPTH
#include "conv_transpose_grouped.cuh"
#endif
#include "conv_transpose_interleaved.cuh"
#include "conv_transpose_portable_plan.h"
#include "device_limits.h"

namespace tconv {
namespace cuda {

struct InterleavedPlan {
  bool usable;
  bool rounds;  // fp32 operands to TF32
  int row_blocks, channel_blocks;
  int64_t staged, smem_bytes, blocks;
#ifdef TCONV_WALKS_DEPTH
  bool grouped;  // by the kernel for groups of few channels in 16 bits
  int first_offset, staged_rows, staged_width, weight_bytes, warp_bytes;

  // Slices of volumes: in 16 bits only where the tensor cores form the products.
  bool serves(const ConvCall& call) const { return usable && (grouped || call.dtype == kFloat32); }
#endif
};

// The channels of one tap in depth: a call's layer has those of all.
inline int64_t interleaved_channels(const ConvCall& call) {
  const int64_t channels = call.layer.in_channels / call.layer.groups;
#ifdef TCONV_WALKS_DEPTH
  return channels / call.depth.tap_count();
#else
  return channels;
#endif
}

// Slices of volumes, which the direct kernel by itself cannot read; columns that it would store one by one.
inline bool interleaves(const ConvCall& call) {
  const ConvTransposeLayer& p = call.layer;
#ifdef TCONV_WALKS_DEPTH
  if (call.depth.walks()) return call.depth.residues() == 1;
#endif
  return p.stride_w > 2 && p.out_channels / p.groups > 4;
}

// Why a layer's products do not pay for tensor cores, which store columns one by one where they are so far apart, or
// null.
inline const char* stores_take_longest(const ConvTransposeLayer& p) {
  constexpr double kMostProducts = 48;  // of an output
  const double products = static_cast<double>(p.in_h * p.in_w) * (p.in_channels / p.groups) * p.kernel_h * p.kernel_w;
  return p.stride_w > 2 && products <= kMostProducts * p.out_h * p.out_w ? reason::kFewProductsEach : nullptr;
}

#ifdef TCONV_WALKS_DEPTH
inline bool is_16_bit(const ConvCall& call) { return call.dtype == kFloat16 || call.dtype == kBFloat16; }

// Why 16-bit slices of volumes would leave half of the other kernels' tiles empty, or null.
inline const char* leaves_tiles_half_empty(const ConvCall& call) {
  const bool few = call.layer.groups > 1 && interleaved_channels(call) <= GroupedConfig::kChannels;
  return few && is_16_bit(call) ? reason::kHalfTiles : nullptr;
}

// Adds what the kernel for groups of few channels needs, where it takes the call: slices of volumes in 16 bits.
inline void plan_grouped(InterleavedPlan& plan, const ConvCall& call, int64_t row_taps, const DeviceLimits& device) {
  using Config = GroupedConfig;
  const ConvTransposeLayer& p = call.layer;
  if (!call.depth.walks() || !is_16_bit(call) || interleaved_channels(call) > Config::kChannels) return;
  int64_t first = 0, last = 0;
  for (int residue = 0; residue < p.stride_w; ++residue) {
    const AxisPhase phase = phase_w(p, residue);
    if (phase.tap_count == 0) continue;
    first = std::min<int64_t>(first, phase.offset_first - int64_t{phase.tap_count - 1} * phase.offset_step);
    last = std::max<int64_t>(last, phase.offset_first);
  }
  const int64_t rows = call.depth.taps * row_taps, width = InterleavedConfig::kWarpPositions + last - first;
  const int64_t held = Config::kChannels * Config::held_stride(static_cast<int>(p.stride_w)) * 2;
  const int64_t warp = rows * width * Config::kPositionBytes + held;
  const int64_t weights = rows * p.kernel_w * Config::kTapBytes;
  const int64_t bytes = weights + InterleavedConfig::kWarps * warp;
  if (bytes > device.smem_per_sm / 2 - device.smem_reserved_per_block || bytes > device.smem_per_block) return;
  if (plan.blocks > INT32_MAX) return;
  plan.grouped = plan.usable = true;
  plan.first_offset = static_cast<int>(first);
  plan.staged_rows = static_cast<int>(rows);
  plan.staged_width = static_cast<int>(width);
  plan.weight_bytes = static_cast<int>(weights);
  plan.warp_bytes = static_cast<int>(warp);
  plan.smem_bytes = bytes;
}

#endif
// `indexable`: offsets within a sample's plane fit 32 bits.
inline InterleavedPlan plan_interleaved(const ConvCall& call, bool indexable, const DeviceLimits& device) {
  using Config = InterleavedConfig;
  const ConvTransposeLayer& p = call.layer;
  InterleavedPlan plan{};
  if (!interleaves(call) || !indexable || p.stride_h > Config::kMaxStride || p.stride_w > Config::kMaxStride)
    return plan;
  plan.channel_blocks = static_cast<int>(ceil_div(p.out_channels / p.groups, Config::kChannels));
  plan.row_blocks = static_cast<int>(ceil_div(ceil_div(p.out_h, p.stride_h), Config::kRows));
  int64_t row_taps = 0;
  for (int residue = 0; residue < p.stride_h; ++residue)
    row_taps = std::max<int64_t>(row_taps, phase_h(p, residue).tap_count);
  plan.staged = p.in_channels / p.groups * row_taps * p.kernel_w * Config::kChannels;
  const int64_t held = Config::kWarps * Config::kChannels * Config::kWarpPositions * p.stride_w;
  plan.smem_bytes = (plan.staged + held) * static_cast<int64_t>(sizeof(float));
  plan.blocks = p.batch * p.groups * plan.channel_blocks * plan.row_blocks * p.stride_h;
  // Two blocks to a multiprocessor, or latencies show.
  plan.usable = plan.smem_bytes <= device.smem_per_sm / 2 - device.smem_reserved_per_block &&
                plan.smem_bytes <= device.smem_per_block && plan.blocks <= INT32_MAX;
#ifdef TCONV_WALKS_DEPTH
  plan_grouped(plan, call, row_taps, device);
#endif
  return plan;
}

template <typename Storage>
void set_interleaved_args(InterleavedArgs<Storage>& args, const InterleavedPlan& plan, const ConvCall& call,
                          void* out) {
  const ConvTransposeLayer& p = call.layer;
  args.x = static_cast<const Storage*>(call.x);
  args.weight = static_cast<const Storage*>(call.weight);
  args.out = static_cast<Storage*>(out);
  args.epilogue = make_epilogue_args<Storage>(call);
  args.x_stride_n = p.x_stride_n;
  args.x_stride_c = p.x_stride_c;
  args.x_stride_h = p.x_stride_h;
  args.x_stride_w = static_cast<int>(p.x_stride_w);
  args.out_stride_c = p.out_h * p.out_w;
  args.out_stride_n = p.out_channels * args.out_stride_c;
  args.slices = args.in_depth = args.depth_taps = args.kernel_depth = 1;
#ifdef TCONV_WALKS_DEPTH
  if (call.depth.walks()) {
    const DepthWalk& depth = call.depth;
    args.x_stride_n = depth.x_stride_n;
    args.x_stride_d = depth.x_stride_d;
    args.out_stride_n = depth.out_stride_n;
    args.out_stride_c = depth.out_stride_c;
    args.out_stride_d = depth.out_stride_d;
    args.slices = static_cast<int>(depth.slices);
    args.in_depth = static_cast<int>(depth.in_depth);
    args.depth_taps = static_cast<int>(depth.taps);
    args.depth_first = static_cast<int>(depth.first);
    args.depth_step = static_cast<int>(depth.step);
    args.kernel_depth = static_cast<int>(depth.kernel_depth);
    args.kernel_first = static_cast<int>(depth.kernel_first);
    args.kernel_step = static_cast<int>(depth.kernel_step);
  }
#endif
  args.in_h = static_cast<int>(p.in_h);
  args.in_w = static_cast<int>(p.in_w);
  args.out_h = static_cast<int>(p.out_h);
  args.out_w = static_cast<int>(p.out_w);
  args.kernel_h = static_cast<int>(p.kernel_h);
  args.kernel_w = static_cast<int>(p.kernel_w);
  args.stride_h = static_cast<int>(p.stride_h);
  args.stride_w = static_cast<int>(p.stride_w);
  args.in_channels = static_cast<int>(interleaved_channels(call));
  args.out_channels = static_cast<int>(p.out_channels / p.groups);
  args.groups = static_cast<int>(p.groups);
  args.channel_blocks = plan.channel_blocks;
  args.row_blocks = plan.row_blocks;
  args.staged = static_cast<int>(plan.staged);
  for (int residue = 0; residue < p.stride_h; ++residue) args.rows[residue] = phase_h(p, residue);
  for (int residue = 0; residue < p.stride_w; ++residue) args.columns[residue] = phase_w(p, residue);
}

template <typename Storage, bool kRounds>
int64_t launch_interleaved(const InterleavedPlan& plan, const ConvCall& call, void* out) {
  InterleavedArgs<Storage> args{};
  set_interleaved_args(args, plan, call, out);
  const auto kernel = conv_transpose_interleaved_kernel<Storage, kRounds>;
  TCONV_RETURN_IF_ERROR(allow_dynamic_smem(kernel, plan.smem_bytes));
  return launch_kernel(kernel, dim3(static_cast<unsigned>(plan.blocks)), dim3(InterleavedConfig::kThreads),
                       plan.smem_bytes, call.stream, args);
}

#ifdef TCONV_WALKS_DEPTH
template <typename Storage>
int64_t launch_grouped(const InterleavedPlan& plan, const ConvCall& call, void* out) {
  GroupedArgs<Storage> args{};
  set_interleaved_args(args, plan, call, out);
  args.first_offset = plan.first_offset;
  args.staged_rows = plan.staged_rows;
  args.staged_width = plan.staged_width;
  args.weight_bytes = plan.weight_bytes;
  args.warp_bytes = plan.warp_bytes;
  const auto kernel = conv_transpose_grouped_kernel<Storage>;
  TCONV_RETURN_IF_ERROR(allow_dynamic_smem(kernel, plan.smem_bytes));
  return launch_kernel(kernel, dim3(static_cast<unsigned>(plan.blocks)), dim3(InterleavedConfig::kThreads),
                       plan.smem_bytes, call.stream, args);
}

#endif
template <typename Storage>
int64_t launch_interleaved(const InterleavedPlan& plan, const ConvCall& call, void* out) {
#ifdef TCONV_WALKS_DEPTH
  if constexpr (sizeof(Storage) == 2)
    if (plan.grouped) return launch_grouped<Storage>(plan, call, out);
#endif
  if constexpr (sizeof(Storage) == sizeof(float))
    if (plan.rounds) return launch_interleaved<Storage, true>(plan, call, out);
  return launch_interleaved<Storage, false>(plan, call, out);
}

}  // namespace cuda
}  // namespace tconv
