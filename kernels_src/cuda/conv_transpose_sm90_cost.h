// What a cut of the Hopper kernel is expected to cost, and with it how long its chunks are. Plain C++.
#pragma once

#include "conv_transpose_sm90_types.h"

namespace tconv {
namespace sm90 {

// Completes a plan that lacks nothing but batches_in_flight, chunks and cost. `single`: chunks of one tile.
inline void choose_chunks(Plan& plan, const ConvTransposeProblem& p, bool single, int num_sms) {
  const int n = plan.n, all_taps = plan.sweep_tiles / plan.num_ic_blocks;
  const int64_t lines = static_cast<int64_t>(ceil_div(p.batch, plan.line_samples)) * plan.num_groups * plan.num_strips;
  // Cycles of the busiest SM: the slowest of three, plus a share of the rest for imperfect overlap.
  // Multiplying: a 64 x N x 16 step takes N/2 cycles, or what reading both operands from shared memory takes.
  // DRAM (24 bytes a cycle and SM): the tile's new pixels and its outputs. L2 (28): those, pixels loaded again, weights.
  const double read = (2048.0 + 32.0 * n) / 112.0;
  const double step = n * 0.5 > read ? n * 0.5 : read;
  const double multiply = 1.0 * plan.num_consumers * plan.num_sweeps * all_taps * ceil_div(plan.in_channels_per_group, 16) * step;
  const double pixel_bytes = kBlockIC * 4.0;
  const int loads = plan.window_loads > 1 ? plan.window_loads : plan.num_ic_blocks;
  const double outputs = static_cast<double>(plan.tile_pixels) * plan.num_phases * plan.out_channels_per_group * 4.0;
  const double weights = plan.resident_weights ? 0 : 1.0 * plan.sweep_tiles * plan.num_sweeps * plan.blocks_per_sweep * kTapBytes;
  // Short runs cost more: rows of a strip begin and end within units, and memory's pages are left sooner.
  const double runs = plan.num_strips == 1 ? 1.0 : 1.0 + 100.0 / plan.tile_w;
  const double dram = runs * (plan.tile_pixels * pixel_bytes * plan.num_ic_blocks + outputs) / 24.0;
  // Windows that do not continue are loaded while nothing is multiplied.
  const double fresh = single ? 1.5 * (plan.tile_pixels + plan.reach) : plan.tile_pixels;
  const double l2 = (fresh * pixel_bytes * loads + outputs + weights) / 28.0;
  // Measured: with few bytes to many products a data warp had better load one batch at a time.
  plan.batches_in_flight = !single && plan.tile_pixels * pixel_bytes * loads / 24.0 < 0.21 * multiply ? 1 : 2;
  // A pass stores what it has multiplied: an SM sends 32 bytes a cycle, and 2000 cycles are latencies. In turns, one warpgroup
  // does so while the other multiplies.
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
  if (single && plan.ring_ic_blocks > 1) tile_cost += 0.5 * plan.window_units * kUnitPixels * pixel_bytes * plan.num_ic_blocks / 24.0;

  // Chunks of tiles: long ones load few pixels twice, short ones share out evenly. A new chunk costs the pixels of its
  // reach and the time until the first unit is there.
  const double restart_cost = single ? 300.0 : plan.reach * pixel_bytes * plan.ring_ic_blocks / 24.0 + 1500.0;
  plan.cost = 0;
  for (int tiles = 1; tiles <= plan.num_tiles && tiles <= (single ? 1 : 64); ++tiles) {
    const int chunks = ceil_div(plan.num_tiles, tiles);
    const int rounds = ceil_div(lines * chunks, num_sms);
    const double cost = rounds * (tiles * tile_cost + restart_cost);
    if (plan.cost != 0 && cost >= plan.cost) continue;
    plan.cost = cost;
    plan.chunk_tiles = tiles;
    plan.num_tile_chunks = chunks;
    plan.num_chunks = static_cast<int>(lines * chunks);
  }
}

}  // namespace sm90
}  // namespace tconv
