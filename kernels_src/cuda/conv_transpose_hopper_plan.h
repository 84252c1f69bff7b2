// How the Hopper kernel cuts a transposed convolution into work: plain host C++, no CUDA, so that it can be
// tested anywhere. The kernel and its launcher read nothing but this plan.
//
// Terms. A *strip* is one sample and group, cut across its columns into equal parts (one, where the window fits). A
// phase's outputs in it, row after row at a *pitch* that leaves room for the zeros between rows, are one *line* of
// pixels, and so is the input at the same pitch: a tap is a shift along the line, the same line for all phases. Small
// images of one strip lie behind each other in one line, image_rows apart, so that tiles are full; but not where
// moments are wanted, which are a sample's. A *tile* is the next num_segments x N pixels of the line, whatever rows
// they lie in; a *segment* is N of them, one wgmma wide. Pixels between rows are computed and dropped. A *sweep* is the
// part of a tile that the consumer warpgroups compute together: blocks_per_sweep blocks of 64 output channels by
// num_segments segments, a warpgroup each; phase after phase, from the same window. The *window* of a tile is the input
// it needs: its own pixels and `reach` more, by 64 channels. Windows are loaded in *units* of pixels into a ring in
// shared memory; tiles that follow each other along a line, a *chunk*, share units. The ring's first mirror_pixels are
// repeated behind its end, so that a segment never wraps; a ring of exactly one window is never wrapped and needs no
// mirror. Several blocks of input channels lie side by side in the ring, each with its mirror; where there is no room
// for all, a ring of one window takes one after the other, again for every sweep.
#pragma once

#include "conv_transpose_hopper_cost.h"
#include "conv_transpose_hopper_types.h"

namespace tconv {
namespace hopper {

// Do quads of pixels come as aligned vectors, and channels in whole halves of a block? (If the tensor starts at one.)
inline bool loads_vectors(const ConvTransposeLayer& p) {
  const int64_t quad = kVectorPixels;
#ifdef TCONV_WALKS_DEPTH
  return p.in_channels / p.groups % kChunkIC == 0 && p.x_stride_w == 1 && p.in_w % quad == 0 &&
#else
  return p.in_channels / p.groups % (kBlockIC / 2) == 0 && p.x_stride_w == 1 && p.in_w % quad == 0 &&
#endif
         p.x_stride_n % quad == 0 && p.x_stride_c % quad == 0 && p.x_stride_h % quad == 0;
}

// The parts of a plan that do not depend on the tile shape. Sets usable.
inline Plan plan_geometry(const ConvTransposeLayer& p) {
  Plan plan{};
  auto refuse = [&](const char* reason) {
    plan.usable = false;
    plan.reason = reason;
    return plan;
  };
  if (p.stride_h * p.stride_w > kMaxPhases) return refuse(reason::kManyPhases);
  const int64_t limit = int64_t(1) << 30;
  if (p.batch * p.groups > limit || p.in_h > limit || p.in_w > limit || p.out_h > limit || p.out_w > limit)
    return refuse(reason::kLongExtent);
  plan.num_groups = static_cast<int>(p.groups);
  plan.in_channels_per_group = static_cast<int>(p.in_channels / p.groups);
  plan.out_channels_per_group = static_cast<int>(p.out_channels / p.groups);
  plan.num_ic_blocks = ceil_div(plan.in_channels_per_group, kBlockIC);
  int leftmost = INT32_MAX;
  plan.last_tapped_phase = -1;
  plan.row_offset = INT32_MAX;
  for (int rh = 0; rh < p.stride_h && rh < p.out_h; ++rh) {
    for (int rw = 0; rw < p.stride_w && rw < p.out_w; ++rw) {
      const AxisPhase h = phase_h(p, rh), w = phase_w(p, rw);
      Phase& phase = plan.phases[plan.num_phases++];
      phase.out_first_h = rh;
      phase.out_first_w = rw;
      phase.out_count_h = static_cast<int>(h.out_count);
      phase.out_count_w = static_cast<int>(w.out_count);
      if (h.tap_count == 0 || w.tap_count == 0) continue;
      plan.last_tapped_phase = plan.num_phases - 1;
      phase.taps_h = h.tap_count;
      phase.taps_w = w.tap_count;
      phase.kernel_first_h = h.tap_first;
      phase.kernel_first_w = w.tap_first;
      phase.row_shift = h.offset_first - (h.tap_count - 1) * h.offset_step;  // made relative below
      phase.col_shift = w.offset_first - (w.tap_count - 1) * w.offset_step;
      plan.row_offset = phase.row_shift < plan.row_offset ? phase.row_shift : plan.row_offset;
      leftmost = phase.col_shift < leftmost ? phase.col_shift : leftmost;
      plan.tap_step_h = h.offset_step;
      plan.tap_step_w = w.offset_step;
      plan.kernel_step_h = h.tap_step;
      plan.kernel_step_w = w.tap_step;
    }
  }
  if (plan.last_tapped_phase < 0) return refuse(reason::kNoTaps);
  plan.col_offset = p.in_w % kVectorPixels == 0 ? round_down(leftmost, kVectorPixels) : leftmost;
  for (int i = 0; i < plan.num_phases; ++i) {
    if (plan.phases[i].taps_h == 0) continue;
    plan.phases[i].row_shift -= plan.row_offset;
    plan.phases[i].col_shift -= plan.col_offset;
  }
  plan.usable = true;
  return plan;
}

// Completes `plan` for a kernel and the given cut, of values in 16 bits or in fp32; false where it does not fit.
// `single`: chunks of one tile, whose windows start anew at the ring's first unit. `pooled`: whole pairs of rows to a
// segment, one strip, one phase. `stacked`: as many images to a line as there are.
inline bool plan_tiles(Plan& plan, const ConvTransposeLayer& p, Shape shape, int num_strips, int blocks_per_sweep,
                       bool single, bool pooled, bool stacked, bool side_by_side, bool sixteen_bit, int smem_limit,
                       int num_sms) {
  const int n = shape.n;
  if (shape.scattered && loads_vectors(p)) return false;
  if (side_by_side && plan.num_ic_blocks == 1) return false;
  if (stacked && (num_strips > 1 || pooled || p.batch < 2 || !stacks(n))) return false;
  if (pooled && (num_strips > 1 || plan.num_phases > 1 || !shape.pools)) return false;
  if (shape.twin && (p.stride_w != 2 || p.out_w < 2 || plan.out_channels_per_group < kBlockOC / 4)) return false;
  // Over all phases: outputs, and rows and columns of the line that taps read beyond those of the outputs.
  int max_h = 0, max_w = 0, beyond_h = 0, beyond_w = 0, below = 0, all_taps = 0, with_taps = 0;
  const auto raise = [](int& most, int value) { most = value > most ? value : most; };
  for (int i = 0; i < plan.num_phases; ++i) {
    const Phase& phase = plan.phases[i];
    raise(max_h, phase.out_count_h);
    raise(max_w, phase.out_count_w);
    raise(below, phase.out_count_h);
    if (phase.taps_h == 0) continue;
    const int rows = phase.row_shift + (phase.taps_h - 1) * plan.tap_step_h;
    raise(beyond_h, rows);
    raise(beyond_w, phase.col_shift + (phase.taps_w - 1) * plan.tap_step_w);
    raise(below, phase.out_count_h + rows);  // rows read, from the line's row 0
    all_taps += phase.taps_h * phase.taps_w;
    ++with_taps;
  }
  plan.num_strips = num_strips;
  plan.tile_w = num_strips == 1 ? max_w : round_up(ceil_div(max_w, num_strips), 4);
  if (num_strips > 1) plan.num_strips = ceil_div(max_w, plan.tile_w);
  int pitch = plan.tile_w + beyond_w;
  if (plan.num_strips == 1) {
    // One strip: the zeros left of a row serve as the zeros right of the row before it, so the pitch need only
    // cover the image and the larger reach; column_offset <= 0 zeros lie left, and reads beyond wrap into them.
    const int left = -plan.col_offset;
    const int right = pitch - left - static_cast<int>(p.in_w);  // columns read beyond the image's right edge
    const int shared = left + static_cast<int>(p.in_w) + (right > left ? right - left : 0);
    if (left >= 0 && shared < pitch) pitch = shared;
    if (pitch < plan.tile_w) pitch = plan.tile_w;
  }
  plan.n = n;
  plan.twin = shape.twin ? 1 : 0;
  plan.pitch = round_up(pitch < 8 ? 8 : pitch, kVectorPixels);
  plan.num_consumers = shape.consumers;
  plan.producer_warps = shape.producer_warps;
  plan.blocks_per_sweep = blocks_per_sweep;
  plan.num_segments = shape.consumers / blocks_per_sweep;
  plan.pooled = pooled ? 1 : 0;
  plan.segment_pixels = pooled ? n / (2 * plan.pitch) * (2 * plan.pitch) : n;
  plan.tile_pixels = plan.num_segments * plan.segment_pixels;
  if (plan.segment_pixels == 0) return false;
  const int out_blocks = ceil_div(plan.out_channels_per_group, kBlockOC);
  if (out_blocks % blocks_per_sweep != 0 || shape.consumers % blocks_per_sweep != 0) return false;
  plan.num_sweeps = out_blocks / plan.blocks_per_sweep;
  // Rows below an image are zeros; those above the next one serve as well, so that the distance need only cover the
  // image, its outputs, and what taps of the last output row read beyond the next one's zeros.
  plan.image_rows = below + plan.row_offset;
  raise(plan.image_rows, static_cast<int>(p.in_h) - plan.row_offset);
  raise(plan.image_rows, max_h);
  if (plan.image_rows > below) plan.image_rows = below;
  const int64_t most_samples = INT32_MAX / 8 / (static_cast<int64_t>(plan.image_rows) * plan.pitch);
  plan.line_samples = !stacked ? 1 : static_cast<int>(p.batch < most_samples ? p.batch : most_samples);
  if (plan.line_samples < 1) return false;
  const int64_t line_rows = static_cast<int64_t>(plan.line_samples - 1) * plan.image_rows + max_h;
  const int64_t longest = (line_rows - 1) * plan.pitch + plan.tile_w;
  const int64_t reach = static_cast<int64_t>(beyond_h) * plan.pitch + beyond_w;
  if (longest > INT32_MAX / 4 || reach > kMaxRingUnits * kUnitPixels) return false;
  plan.reach = static_cast<int>(reach);
  plan.num_tiles = ceil_div(longest, plan.tile_pixels);
  const int64_t lines = static_cast<int64_t>(ceil_div(p.batch, plan.line_samples)) * plan.num_groups * plan.num_strips;
  if (lines * plan.num_phases * plan.num_tiles * plan.num_segments * plan.out_channels_per_group > INT32_MAX / 2)
    return false;
  plan.sweep_tiles = all_taps * plan.num_ic_blocks;
  plan.num_weight_tiles = static_cast<int64_t>(plan.sweep_tiles) * plan.num_sweeps * plan.num_groups;
  for (int i = 0, base = 0; i < plan.num_phases; ++i) {
    Phase& phase = plan.phases[i];
    phase.first_pixel = phase.row_shift * plan.pitch + phase.col_shift;
    phase.weight_base = base;
    base += phase.taps_h * phase.taps_w * plan.num_ic_blocks;
  }

  // Shared memory. The ring wants the units of a window and those of the next tile; the weights want to be resident, or
  // a ring deep enough for one warpgroup to run ahead while another stores its outputs.
  if (plan.num_ic_blocks > 1 && !side_by_side) single = true;
  plan.ring_ic_blocks = side_by_side ? plan.num_ic_blocks : 1;
  plan.window_loads = plan.num_ic_blocks > plan.ring_ic_blocks ? plan.num_ic_blocks * plan.num_sweeps * with_taps : 1;
  plan.store_bytes_per_warp = pooled ? 8 * pool_store_pitch(n) * 4 : kStoreBytesPerWarp;
#ifdef TCONV_JOINS_COLUMNS
  if (plan.joined.apart) plan.store_bytes_per_warp = kTwoColumnsBytesPerWarp;
#endif
  const int store_bytes = 4 * shape.consumers * plan.store_bytes_per_warp;
  const int budget = smem_limit - store_bytes - kBarrierBytes;
  plan.window_units = ceil_div(plan.tile_pixels + plan.reach, kUnitPixels);
  plan.mirror_pixels = single ? 0 : round_up(n, kBatchPixels);
  // A later tile of a chunk may start within a unit.
  const int misaligned = ceil_div(plan.tile_pixels + plan.reach + kUnitPixels - 1, kUnitPixels);
  const int least_units = single ? plan.window_units : misaligned;
#ifdef TCONV_LOADS_AHEAD
  // Of blocks of channels that come one after the other, the next ones while one is multiplied.
  const int step = single && plan.window_loads > 1 ? plan.window_units : 1;
  const int most_units = !single    ? misaligned + ceil_div(plan.tile_pixels, kUnitPixels)
                         : step > 1 ? kMostWindows * plan.window_units
                                    : plan.window_units;
#else
  const int most_units = single ? plan.window_units : misaligned + ceil_div(plan.tile_pixels, kUnitPixels);
#endif
  const int64_t all_stages = plan.num_weight_tiles * blocks_per_sweep;
  const int64_t wanted_stages[] = {all_stages, 6 * blocks_per_sweep, 4 * blocks_per_sweep, 3 * blocks_per_sweep};
  // Where blocks of channels side by side are a ring of one window, none is given back before the last pass, and turns
  // hide no loads. Measured: with turns, or with three stages, such cuts are slower than others that cost more by the
  // model.
  const bool turns_hide_loads = !single || plan.ring_ic_blocks == 1;
  const int attempts = turns_hide_loads ? 4 : 3;
  int stages = 0;
  for (int attempt = 0; attempt < attempts && stages == 0; ++attempt) {
#ifdef TCONV_LOADS_AHEAD
    for (int units = most_units; units >= least_units && stages == 0; units -= step) {
#else
    for (int units = most_units; units >= least_units && stages == 0; --units) {
#endif
      plan.ring_units = units;
      plan.ring_block_pixels = units * kUnitPixels + plan.mirror_pixels;
      plan.ring_bytes = plan.ring_ic_blocks * plan.ring_block_pixels * kPixelBytes;
      // A data warp's next batch lies less than a lap behind its last one, or it would take a unit of the lap before
      // for a free one.
      if (units * (kUnitPixels / kBatchPixels) * plan.ring_ic_blocks < shape.producer_warps) continue;
      if (units > kMaxRingUnits || plan.ring_bytes > budget || wanted_stages[attempt] > kMaxWeightStages) continue;
      const int fitting = (budget - plan.ring_bytes) / kTapBytes;
      if (fitting >= wanted_stages[attempt]) stages = fitting < kMaxWeightStages ? fitting : kMaxWeightStages;
    }
  }
  if (stages == 0) return false;
  plan.resident_weights = all_stages <= stages ? 1 : 0;
  plan.ring_stages = stages / blocks_per_sweep;
  plan.weight_stages = plan.resident_weights ? static_cast<int>(all_stages) : plan.ring_stages * blocks_per_sweep;
  // In turns, unless one would wait for what only the other's turn gives back: stages that both multiply by, or pixels
  // before the next channel block of the same tile. With resident weights turns gain 2 % and cost 7 % where the
  // epilogue is long (GELU).
  plan.alternate = !plan.resident_weights && blocks_per_sweep == shape.consumers &&
                   plan.num_ic_blocks == plan.ring_ic_blocks && turns_hide_loads;
#ifdef TCONV_TAKES_TURNS
  plan.in_turns = takes_turns(shape, sixteen_bit) && plan.num_segments == 2 && plan.num_sweeps * plan.num_phases == 1 &&
                  plan.num_ic_blocks == 1 && !plan.resident_weights && !single && !pooled &&
                  (!sixteen_bit || plan.ring_stages >= kLeastTurnStages);
  plan.turn_slots = plan.sweep_tiles % plan.ring_stages;
  plan.turn_laps = plan.sweep_tiles / plan.ring_stages % 2;
  plan.alternate = plan.alternate || plan.in_turns;
#endif
  plan.smem_bytes = plan.ring_bytes + plan.weight_stages * kTapBytes + store_bytes + kBarrierBytes;

  choose_ranges(plan, p, single, num_sms);
  return !shape.wide || sixteen_bit || plan.batches_in_flight == 1;
}

// The cheapest plan, or one that is not usable and says why.
#ifdef TCONV_JOINS_COLUMNS
// `joined`: what p's columns are, joined ones or not; for whose epilogue the kernels with most accumulators have no
// registers.
inline Plan make_plan(const ConvTransposeLayer& p, Outputs outputs, bool sixteen_bit, int smem_limit, int num_sms,
                      const JoinedColumns& joined = {}) {
#else
inline Plan make_plan(const ConvTransposeLayer& p, Outputs outputs, bool sixteen_bit, int smem_limit, int num_sms) {
#endif
  const bool pooled = outputs == Outputs::kPooled;
  const Plan geometry = plan_geometry(p);
  if (!geometry.usable) return geometry;
  Plan best = geometry;
  best.usable = false;
  best.reason = reason::kNoHopperTile;
  for (const Shape& shape : kShapes) {
    if (!serves(shape, outputs, sixteen_bit)) continue;
#ifdef TCONV_JOINS_COLUMNS
    if (joined.slots > 0 && !stores_joined(shape.n)) continue;
#endif
    // Of two that cost the same the one with more blocks of output channels was faster (1x1: 0.099 ms, 0.104).
    for (int blocks = shape.consumers; blocks >= 1; --blocks) {
      for (int strips = 1; strips <= 64; ++strips) {
        if ((p.out_w / p.stride_w) / strips < 24 && strips > 1) break;
        for (int kind = 0; kind < 8; ++kind) {
          const bool single = kind & 1, stacked = kind & 2, side_by_side = kind & 4;
          if (outputs != Outputs::kAlone && stacked) continue;
          Plan plan = geometry;
#ifdef TCONV_JOINS_COLUMNS
          plan.joined = joined;
#endif
          if (!plan_tiles(plan, p, shape, strips, blocks, single, pooled, stacked, side_by_side, sixteen_bit,
                          smem_limit, num_sms))
            continue;
          if (best.usable && plan.cost >= best.cost) continue;
          best = plan;
          best.reason = "";
        }
      }
    }
  }
  return best;
}

}  // namespace hopper
}  // namespace tconv
