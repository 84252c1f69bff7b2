// How a convolution whose outputs are held is cut into tiles, and whether they fit: plain host C++, as
// conv_transpose_hopper_plan.h.
#pragma once

#include <algorithm>

#include "conv_group_norm_held_types.h"
#include "conv_transpose_hopper_plan.h"

namespace tconv {
namespace held {

// Samples that are held at once by as many processors.
inline int samples_at_once(const Plan& plan, int num_sms) { return num_sms / plan.blocks_per_sample(); }

// More samples at once; else more stages, which producers can be ahead by; else less for them to do.
inline bool is_better(const Plan& a, const Plan& b, int num_sms) {
  const int more_samples = samples_at_once(a, num_sms) - samples_at_once(b, num_sms);
  if (more_samples != 0) return more_samples > 0;
  if (a.num_stages != b.num_stages) return a.num_stages > b.num_stages;
  return a.window_quads < b.window_quads;
}

// The best cut, or a plan that is not usable and says why.
inline Plan make_plan(const ConvTransposeLayer& p, int value_bytes, int smem_limit, int num_sms) {
  Plan best{};
  best.usable = false;
  const auto refuse = [&](const char* reason) {
    best.reason = reason;
    return best;
  };
  if (p.stride_h != 1 || p.stride_w != 1 || p.groups != 1) return refuse(reason::kStridesOrGroups);
  if (p.in_channels > hopper::kBlockIC || p.out_channels > kChannels) return refuse(reason::kOver64Channels);
  const hopper::Plan geometry = hopper::plan_geometry(p);
  if (!geometry.usable) return refuse(geometry.reason);
  const hopper::Phase& phase = geometry.phases[0];
  Plan plan{};
  plan.usable = true;
  plan.reason = "";
  plan.held_bytes = held_bytes(value_bytes);
  plan.in_channels = geometry.in_channels_per_group;
  plan.out_channels = geometry.out_channels_per_group;
  plan.num_chunks = hopper::ceil_div(plan.in_channels, kChunkChannels);
  plan.taps_h = phase.taps_h, plan.taps_w = phase.taps_w;
  plan.row_offset = geometry.row_offset, plan.col_offset = geometry.col_offset;
  if (plan.taps_w > smem_limit / (kMinWeightStages * kTapBytes)) return refuse(reason::kLongWeightRow);
  plan.weight_stage_bytes = plan.taps_w * kTapBytes;
  // Windows begin at pairs of pixels, not at whole quads.
  plan.whole_rows = p.in_w % hopper::kVectorPixels == 0;
  const int skipped = phase.col_shift / 2 * 2, col_shift = phase.col_shift - skipped;
  plan.col_offset += skipped;
  const int64_t beyond_h = phase.row_shift + int64_t{phase.taps_h - 1} * geometry.tap_step_h;
  const int64_t beyond_w = col_shift + int64_t{phase.taps_w - 1} * geometry.tap_step_w;
  best.reason = reason::kNoHeldTile;
  for (int strips = 1; strips <= num_sms; ++strips) {
    // The last one has what is left.
    plan.num_strips = strips;
    plan.strip_w = hopper::round_up(hopper::ceil_div(p.out_w, strips), 2);
    if (int64_t{strips - 1} * plan.strip_w >= p.out_w) continue;
    const int64_t widest = strips == 1 ? p.out_w : plan.strip_w, pitch = hopper::round_up(widest + beyond_w, 2);
    const int64_t line = (p.out_h - 1) * pitch + widest;
    if (line > int64_t{num_sms} * kTilePixels) {
      if (!best.usable) best.reason = reason::kLargeSample;
      continue;
    }
    plan.pitch = static_cast<int>(pitch);
    plan.num_tiles = hopper::ceil_div(line, kTilePixels);
    const int64_t window = hopper::round_up(kTilePixels + beyond_h * pitch + beyond_w, 2);
    if (window > smem_limit / kPixelBytes) continue;
    plan.window_pixels = static_cast<int>(window);
    plan.stage_bytes = hopper::round_up(plan.window_pixels * kPixelBytes, kSwizzleBytes);
    plan.first_pixel = phase.row_shift * plan.pitch + col_shift;
    plan.tap_step_h = geometry.tap_step_h * plan.pitch, plan.tap_step_w = geometry.tap_step_w;
    if (plan.blocks_per_sample() > num_sms) {
      if (!best.usable) best.reason = reason::kLargeSample;
      continue;
    }
    plan.window_quads = 0;
    for (int block = 0; block < plan.blocks_per_sample(); ++block)
      plan.window_quads = std::max(plan.window_quads, WindowQuads(plan, block % strips, block / strips).count);
    const int fixed = tables_bytes(plan.blocks_per_sample(), plan.window_quads) + plan.held_bytes;
    plan.num_stages =
        std::min((smem_limit - fixed - kMinWeightStages * plan.weight_stage_bytes) / plan.stage_bytes, kMaxStages);
    if (plan.num_stages < kMinStages) continue;
    const int without_weights = fixed + plan.num_stages * plan.stage_bytes;
    plan.num_weight_stages = std::min((smem_limit - without_weights) / plan.weight_stage_bytes, kMaxWeightStages);
    plan.smem_bytes = without_weights + plan.num_weight_stages * plan.weight_stage_bytes;
    if (!best.usable || is_better(plan, best, num_sms)) best = plan;
  }
  return best;
}

// Does it pay? Not where most processors would have no part of a sample.
inline bool pays(const Plan& plan, int num_sms) {
  return samples_at_once(plan, num_sms) * plan.blocks_per_sample() * 3 >= num_sms * 2;
}

}  // namespace held
}  // namespace tconv
