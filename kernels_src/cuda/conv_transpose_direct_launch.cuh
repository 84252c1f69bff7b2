// Host side of the direct kernel: what it can do, how it cuts a layer, its launch.
#pragma once

#include <algorithm>
#include <type_traits>

#include "check.h"
#include "conv_transpose_direct.cuh"
#ifdef TCONV_INTERLEAVES  // where the reference's strides or groups call for it (generator/calls.py)
#include "conv_transpose_interleaved_launch.cuh"
#endif
#ifdef TCONV_FEW_CHANNELS
#include "conv_transpose_few_channels_launch.cuh"
#endif
#include "conv_transpose_portable_plan.h"
#include "device_limits.h"
#ifdef TCONV_IN_PARTS
#include "dtype_parts.h"
#endif

namespace tconv {
namespace cuda {

struct DirectPlan {
  bool usable;
  const char* reason;  // why not usable
  int channels;        // of a block
  int phases;          // of the columns that a lane computes
  int row_blocks, column_parts, channel_blocks;
  int64_t smem_bytes, blocks;
#ifdef TCONV_INTERLEAVES
  InterleavedPlan interleaved;  // which takes the call where it is usable
#endif
#ifdef TCONV_FEW_CHANNELS
  bool few_channels;  // by the kernel for volumes of few channels
#endif

  int64_t num_partials(const ConvTransposeLayer& p) const { return row_blocks * p.stride_h * column_parts; }
};

// `indexable`: offsets within a sample's plane fit 32 bits.
inline DirectPlan plan_direct(const ConvTransposeLayer& p, bool indexable, const DeviceLimits& device) {
  using Config = DirectConfig;
  DirectPlan plan{};
  const auto refuse = [&](const char* why) {
    plan.reason = why;
    return plan;
  };
  if (!indexable) return refuse(reason::kLongIndices);
  if (p.stride_h > Config::kMaxStride || p.stride_w > Config::kMaxStride) return refuse(reason::kWideStride);
  const int64_t oc = p.out_channels / p.groups;
  plan.channels = oc == 1 ? 1 : 4;
  plan.phases = p.stride_w == 2 ? 2 : 1;
  plan.channel_blocks = static_cast<int>(ceil_div(oc, plan.channels));
  plan.row_blocks = static_cast<int>(ceil_div(ceil_div(p.out_h, p.stride_h), Config::kRows));
  plan.column_parts = static_cast<int>(p.stride_w) / plan.phases;
  int64_t row_taps = 0;
  for (int residue = 0; residue < p.stride_h; ++residue)
    row_taps = std::max<int64_t>(row_taps, phase_h(p, residue).tap_count);
  plan.smem_bytes =
      p.in_channels / p.groups * row_taps * p.kernel_w * plan.channels * static_cast<int64_t>(sizeof(float));
  plan.blocks = p.batch * p.groups * plan.channel_blocks * plan.num_partials(p);
  // Two blocks to a multiprocessor, or latencies show.
  if (plan.smem_bytes > device.smem_per_sm / 2 - device.smem_reserved_per_block - 1024 ||
      plan.smem_bytes > device.smem_per_block - 1024)
    return refuse(reason::kManyWeights);
  if (plan.blocks > INT32_MAX) return refuse(reason::kManyBlocks);
  plan.usable = true;
  return plan;
}

template <typename Storage>
int64_t launch_direct(const DirectPlan& plan, const ConvCall& call, void* out, Moments* partials) {
#ifdef TCONV_FEW_CHANNELS
  if (plan.few_channels) return launch_few_channels<Storage>(call, out);
#endif
#ifdef TCONV_INTERLEAVES
  if (plan.interleaved.usable) return launch_interleaved<Storage>(plan.interleaved, call, out);
#endif
  const ConvTransposeLayer& p = call.layer;
  DirectArgs<Storage> args{};  // entries of strides that there are not, too, so that equal calls are equal to the byte
  args.x = static_cast<const Storage*>(call.x);
  args.weight = static_cast<const Storage*>(call.weight);
  args.out = static_cast<Storage*>(out);
  args.partials = partials;
  args.epilogue = make_epilogue_args<Storage>(call);
  args.x_stride_n = p.x_stride_n;
  args.x_stride_c = p.x_stride_c;
  args.x_stride_h = static_cast<int>(p.x_stride_h);
  args.x_stride_w = static_cast<int>(p.x_stride_w);
  args.in_h = static_cast<int>(p.in_h);
  args.in_w = static_cast<int>(p.in_w);
  args.out_h = static_cast<int>(p.out_h);
  args.out_w = static_cast<int>(p.out_w);
  args.kernel_h = static_cast<int>(p.kernel_h);
  args.kernel_w = static_cast<int>(p.kernel_w);
  args.stride_h = static_cast<int>(p.stride_h);
  args.stride_w = static_cast<int>(p.stride_w);
  args.in_channels = static_cast<int>(p.in_channels / p.groups);
  args.out_channels = static_cast<int>(p.out_channels / p.groups);
  args.groups = static_cast<int>(p.groups);
  args.channel_blocks = plan.channel_blocks;
  args.row_blocks = plan.row_blocks;
  args.column_parts = plan.column_parts;
  args.first_offset = args.last_offset = 0;
  for (int residue = 0; residue < p.stride_h; ++residue) args.rows[residue] = phase_h(p, residue);
  for (int residue = 0; residue < p.stride_w; ++residue) {
    const AxisPhase phase = phase_w(p, residue);
    args.columns[residue] = phase;
    if (phase.tap_count == 0) continue;
    args.first_offset = std::min(args.first_offset, phase.offset_first - (phase.tap_count - 1) * phase.offset_step);
    args.last_offset = std::max(args.last_offset, phase.offset_first);
  }
  const auto start = [&](auto channels, auto phases) -> int64_t {
    const auto kernel = conv_transpose_direct_kernel<Storage, decltype(channels)::value, decltype(phases)::value>;
    TCONV_RETURN_IF_ERROR(allow_dynamic_smem(kernel, plan.smem_bytes));
    return launch_kernel(kernel, dim3(static_cast<unsigned>(plan.blocks)), dim3(DirectConfig::kThreads),
                         plan.smem_bytes, call.stream, args);
  };
  const auto with_phases = [&](auto channels) {
    return plan.phases == 2 ? start(channels, std::integral_constant<int, 2>())
                            : start(channels, std::integral_constant<int, 1>());
  };
  return plan.channels == 1 ? with_phases(std::integral_constant<int, 1>())
                            : with_phases(std::integral_constant<int, 4>());
}
#ifdef TCONV_IN_PARTS
TCONV_LEFT_OUT_STORAGE(launch_direct, const DirectPlan&, const ConvCall&, void*, Moments*)
#endif

}  // namespace cuda
}  // namespace tconv
