// How a convolution whose outputs are held is cut into tiles, and whether they fit: plain host C++, as conv_transpose_sm90_plan.h.
#pragma once

#include "conv_group_norm_held_types.h"
#include "conv_transpose_sm90_plan.h"

namespace tconv {
namespace held {

// Samples that are held at once by as many processors.
inline int samples_at_once(const Plan& plan, int num_sms) { return num_sms / plan.blocks_per_sample(); }

// The cut with the fewest blocks, or a plan that is not usable and says why.
inline Plan make_plan(const ConvTransposeProblem& p, int smem_limit, int num_sms) {
  Plan best{};
  best.usable = false;
  const auto refuse = [&](const char* reason) {
    best.reason = reason;
    return best;
  };
  if (p.stride_h != 1 || p.stride_w != 1 || p.groups != 1) return refuse("strides or groups");
  if (p.in_channels > sm90::kBlockIC || p.out_channels > kChannels) return refuse("more than 64 channels");
  const sm90::Plan geometry = sm90::plan_geometry(p);
  if (!geometry.usable) return refuse(geometry.reason);
  const sm90::Phase& phase = geometry.phases[0];
  Plan plan{};
  plan.usable = true;
  plan.reason = "";
  plan.in_channels = geometry.in_channels_per_group;
  plan.out_channels = geometry.out_channels_per_group;
  plan.num_chunks = sm90::ceil_div(plan.in_channels, kChunkChannels);
  plan.taps_h = phase.taps_h, plan.taps_w = phase.taps_w;
  plan.row_offset = geometry.row_offset, plan.col_offset = geometry.col_offset;
  if (plan.taps_h * plan.taps_w > smem_limit / sm90::kTapBytes) return refuse("weights do not fit in shared memory");
  plan.weight_bytes = plan.taps_h * plan.taps_w * sm90::kTapBytes;
  const int64_t beyond_h = phase.row_shift + int64_t{phase.taps_h - 1} * geometry.tap_step_h;
  const int64_t beyond_w = phase.col_shift + int64_t{phase.taps_w - 1} * geometry.tap_step_w;
  best.reason = "no tile whose window and outputs fit in shared memory";
  const char* const too_large = "a sample does not fit on the device";
  for (int strips = 1; strips <= num_sms; ++strips) {
    plan.tile_w = sm90::round_up(sm90::ceil_div(p.out_w, strips), sm90::kVectorPixels);
    plan.num_strips = sm90::ceil_div(p.out_w, plan.tile_w);
    if (plan.num_strips != strips) continue;  // another number of strips is the same cut
    const int64_t pitch = sm90::round_up(plan.tile_w + beyond_w, sm90::kVectorPixels), line = (p.out_h - 1) * pitch + plan.tile_w;
    if (line > int64_t{num_sms} * kTilePixels) {
      if (!best.usable) best.reason = too_large;
      continue;
    }
    plan.pitch = static_cast<int>(pitch);
    plan.num_tiles = sm90::ceil_div(line, kTilePixels);
    const int64_t window = kTilePixels + beyond_h * pitch + beyond_w;
    if (window > smem_limit / kPixelBytes) continue;
    plan.window_quads = sm90::ceil_div(window, sm90::kVectorPixels);
    plan.stage_bytes = sm90::round_up(plan.window_quads * sm90::kVectorPixels * kPixelBytes, kSwizzleBytes);
    plan.first_pixel = phase.row_shift * plan.pitch + phase.col_shift;
    plan.tap_step_h = geometry.tap_step_h * plan.pitch, plan.tap_step_w = geometry.tap_step_w;
    plan.reach_rows = static_cast<int>(beyond_h);
    plan.smem_bytes = plan.weight_bytes + kStages * plan.stage_bytes + kFixedBytes + counts_bytes(plan.blocks_per_sample());
    if (plan.smem_bytes > smem_limit) continue;
    if (plan.blocks_per_sample() > num_sms) {
      if (!best.usable) best.reason = too_large;
      continue;
    }
    if (!best.usable || plan.blocks_per_sample() < best.blocks_per_sample()) best = plan;
  }
  return best;
}

// Does it pay? Not where most processors would have no part of a sample.
inline bool pays(const Plan& plan, int num_sms) {
  return samples_at_once(plan, num_sms) * plan.blocks_per_sample() * 3 >= num_sms * 2;
}

}  // namespace held
}  // namespace tconv
