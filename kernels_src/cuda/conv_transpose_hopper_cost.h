// What a cut of the Hopper kernel is expected to cost, and with it how long its ranges are. Plain C++.
#pragma once

#include "conv_transpose_hopper_types.h"

namespace tconv {
namespace hopper {

// Completes a plan that lacks nothing but batches_in_flight, ranges and cost. `single`: chunks of one tile.
inline void choose_ranges(Plan& plan, const ConvTransposeLayer& p, bool single, int num_sms) {
  const int n = plan.n, all_taps = plan.sweep_tiles / plan.num_ic_blocks;
  const int64_t lines = static_cast<int64_t>(ceil_div(p.batch, plan.line_samples)) * plan.num_groups * plan.num_strips;
  // Cycles of the busiest SM: the slowest of three, plus a share of the rest for imperfect overlap.
  // Multiplying: a 64 x N x 16 step takes N/2 cycles, or what reading both operands from shared memory takes.
  // DRAM (24 bytes a cycle and SM): the tile's new pixels and its outputs. L2 (28): those, pixels loaded again,
  // weights.
  const double read = (2048.0 + 32.0 * n) / 112.0;
  const double step = n * 0.5 > read ? n * 0.5 : read;
  const double multiply =
      1.0 * plan.num_consumers * plan.num_sweeps * all_taps * ceil_div(plan.in_channels_per_group, 16) * step;
  const double pixel_bytes = kBlockIC * 4.0;
  const int loads = plan.window_loads > 1 ? plan.window_loads : plan.num_ic_blocks;
  const double outputs = static_cast<double>(plan.tile_pixels) * plan.num_phases * plan.out_channels_per_group * 4.0;
#ifdef TCONV_TAKES_TURNS
  const int streams = plan.in_turns ? 2 : plan.blocks_per_sweep;
  const double weights = plan.resident_weights ? 0 : 1.0 * plan.sweep_tiles * plan.num_sweeps * streams * kTapBytes;
#else
  const double weights =
      plan.resident_weights ? 0 : 1.0 * plan.sweep_tiles * plan.num_sweeps * plan.blocks_per_sweep * kTapBytes;
#endif
  // Short runs cost more: rows of a strip begin and end within units, and memory's pages are left sooner.
  const double runs = plan.num_strips == 1 ? 1.0 : 1.0 + 100.0 / plan.tile_w;
  const double dram = runs * (plan.tile_pixels * pixel_bytes * plan.num_ic_blocks + outputs) / 24.0;
  // Windows that do not continue are loaded while nothing is multiplied.
#ifdef TCONV_LOADS_AHEAD
#ifdef TCONV_GATHERS_PIXELS
  // Its costs were measured against these.
  const double fresh = single ? 1.5 * (plan.tile_pixels + plan.reach) : plan.tile_pixels;
#else
  const bool ahead = single && plan.ring_units > plan.window_units;
  const double fresh = single ? (ahead ? 1.0 : 1.5) * (plan.tile_pixels + plan.reach) : plan.tile_pixels;
#endif
#else
  const double fresh = single ? 1.5 * (plan.tile_pixels + plan.reach) : plan.tile_pixels;
#endif
  const double l2 = (fresh * pixel_bytes * loads + outputs + weights) / 28.0;
  // Measured: with few bytes to many products a data warp had better load one batch at a time.
  plan.batches_in_flight = !single && plan.tile_pixels * pixel_bytes * loads / 24.0 < 0.21 * multiply ? 1 : 2;
  // A pass stores what it has multiplied: an SM sends 32 bytes a cycle, and 2000 cycles are latencies. In turns, one
  // warpgroup does so while the other multiplies.
  const int passes = plan.num_sweeps * plan.num_phases / (plan.twin ? 2 : 1);
  // Where columns are two apart: pixels of two columns, stored in blocks, or twice as many sectors, half filled.
  const int sectors = plan.twin ? 2 * round_up(n, kStoreColumns / 2) : p.stride_w > 1 ? 2 * n : n;
  const double stores = 2000.0 + plan.num_consumers * kBlockOC * 4.0 * sectors / 32.0;
  double compute = multiply + passes * stores;
  if (plan.alternate) {
    const double one = multiply / plan.num_consumers + passes * stores;
    compute = one > multiply ? one : multiply;
  }
  const double sum = compute + dram + l2;
  double slowest = compute > dram ? compute : dram;
  slowest = l2 > slowest ? l2 : slowest;
  // Measured: turns overlap better.
  double tile_cost = slowest + (plan.alternate && plan.num_ic_blocks == 1 ? 0.2 : 0.3) * (sum - slowest);
  // Measured: where weights need not be streamed, twins had better end with a block of stores.
  if (plan.twin && plan.resident_weights && n % (kStoreColumns / 2) != 0) tile_cost *= 1.08;
  // Blocks of input channels side by side in a ring of one window are given back after their last pass only.
  if (single && plan.ring_ic_blocks > 1)
    tile_cost += 0.5 * plan.window_units * kUnitPixels * pixel_bytes * plan.num_ic_blocks / 24.0;

  // Long ranges load few pixels twice, short ones share out evenly. They end with lines, or where that shares out
  // better anywhere. A new chunk costs the pixels of its reach and the time until the first unit is there.
  const double restart_cost = single ? 300.0 : plan.reach * pixel_bytes * plan.ring_ic_blocks / 24.0 + 1500.0;
  plan.cost = 0;
  const int strip_lines = static_cast<int>(lines / plan.num_strips);
  const auto consider = [&](int range_tiles, int line_tiles, double chunks_per_range) {
    const unsigned of_strip = (static_cast<unsigned>(strip_lines) * line_tiles + range_tiles - 1) / range_tiles;
    const unsigned rounds = (of_strip * plan.num_strips + num_sms - 1) / num_sms;
    const double cost = rounds * (range_tiles * tile_cost + chunks_per_range * restart_cost);
    if (plan.cost != 0 && cost >= plan.cost) return;
    plan.cost = cost;
    plan.range_tiles = range_tiles;
    plan.line_tiles = line_tiles;
    plan.total_tiles = static_cast<int>(lines * line_tiles);
  };
  for (int tiles = 1; tiles <= plan.num_tiles && tiles <= (single ? 1 : 64); ++tiles)
    consider(tiles, round_up(plan.num_tiles, tiles), 1.0);
  for (int rounds = 1; rounds <= 8 && !single; ++rounds) {
    const int ranges = rounds * num_sms / plan.num_strips;  // of a strip
    if (ranges == 0) continue;
    const int tiles = ceil_div(strip_lines * plan.num_tiles, ranges);
    consider(tiles, plan.num_tiles, 1.0 + static_cast<double>(tiles) / plan.num_tiles);
  }
}

}  // namespace hopper
}  // namespace tconv
