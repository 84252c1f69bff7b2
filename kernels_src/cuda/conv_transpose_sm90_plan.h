// How the Hopper kernel cuts a transposed convolution into work: plain host C++, no CUDA, so that it can be
// tested anywhere. The kernel and its launcher read nothing but this plan.
//
// Terms. A *strip* is one sample and group, cut across its columns into equal parts (one, where the window fits). A phase's
// outputs in it, row after row at a *pitch* that leaves room for the zeros between rows, are one *line* of pixels, and
// so is the input at the same pitch: a tap is a shift along the line, the same line for all phases. Small images of one strip lie
// behind each other in one line, image_rows apart, so that tiles are full; but not where moments are wanted, which are a
// sample's. A *tile* is the next num_segments x N pixels of the line, whatever rows they lie in; a *segment* is N of them, one
// wgmma wide. Pixels between rows are computed and dropped.
// A *sweep* is the part of a tile that the consumer warpgroups compute together: blocks_per_sweep blocks of 64
// output channels by num_segments segments, a warpgroup each; phase after phase, from the same window.
// The *window* of a tile is the input it needs: its own pixels and `reach` more, by 64 channels. Windows are loaded in
// *units* of pixels into a ring in shared memory; tiles that follow each other along a line, a *chunk*, share units. The
// ring's first mirror_pixels are repeated behind its end, so that a segment never wraps; a ring of exactly one window is
// never wrapped and needs no mirror. Several blocks of input channels lie side by side in the ring, each with its mirror; where
// there is no room for all, a ring of one window takes one after the other, again for every sweep.
#pragma once

#include "../call.h"

namespace tconv {
namespace sm90 {

constexpr int kBlockOC = 64;           // output channels of a warpgroup: wgmma's M
constexpr int kBlockIC = 64;           // channels of a window: 128 bytes of 16-bit values per pixel
constexpr int kPixelBytes = 128;
constexpr int kTapBytes = kBlockOC * kPixelBytes;  // one tap's weights for 64 output channels
constexpr int kMaxPhases = 16;
constexpr int kUnitPixels = 64;        // of the window: what a full and an empty barrier stand for
constexpr int kBatchPixels = 32;       // what a data warp moves at once
constexpr int kMaxRingUnits = 32;
constexpr int kMaxWeightStages = 32;
struct Shape {
  int consumers, n;
  int producer_warps;
  bool pools;      // compiled with the pooling epilogue too
  bool scattered;  // only for pixels that are loaded one by one, which takes twice the warps
};
// The compiled kernels. Of two that cost the same the first is taken.
constexpr Shape kShapes[] = {{2, 216, 4, true, false}, {2, 128, 8, false, true}, {2, 128, 4, false, false}};
// Kernels that take images behind each other in a line: not those for many products, where the code for it slows the epilogue.
TCONV_HD constexpr bool stacks(int n) { return n <= 128; }
constexpr int kVectorPixels = 4;       // pixels that a producer thread loads at once

// Shared memory next to ring and weight stages: buffers of outputs on their way to memory, barriers, and slack to
// align the ring to 1024 bytes.
constexpr int kStoreColumns = 64;
constexpr int kStoreChannels = 8;
constexpr int kStoreBytesPerWarp = kStoreChannels * (kStoreColumns + 8) * 4;
// With pooling: 8 channels of a segment's column pairs, rows an odd number of 16 bytes, so that they spread over the banks.
TCONV_HD constexpr int pool_store_pitch(int n) { return n / 2 / 4 % 2 == 1 ? n / 2 : n / 2 + 4; }
constexpr int kBarrierBytes = 2 * 8 * (kMaxRingUnits + kMaxWeightStages + 1);
constexpr int kAlignmentSlack = 1024;

struct Phase {
  int out_first_h, out_first_w;   // residues
  int out_count_h, out_count_w;   // outputs of this phase
  int taps_h, taps_w;             // both 0 where either is
  int row_shift, col_shift;       // of the line: where the first tap of output (0, 0) reads
  int first_pixel;                // the same as pixels along the line
  int weight_base;                // first weight tile of this phase, from the sweep's first
};

struct Plan {
  bool usable;
  const char* reason;  // why not usable
  int num_consumers;   // warpgroups that multiply
  int producer_warps;
  int n;               // columns of a segment's wgmma
  int tile_w, pitch;   // output columns of a strip; pixels of the line per row
  int line_samples;    // images behind each other in a line
  int image_rows;      // of the line, from one to the next
  int num_segments;
  int segment_pixels;  // of a segment's n: all, or with pooling the whole pairs of rows among them
  int tile_pixels;
  int pooled;          // outputs are 2 x 2 windows' largest (or smallest) values
  int reach;           // pixels of a window beyond its tile's, the most over phases
  int row_offset;      // input row of the line's row 0
  int col_offset;      // input column of the line's column 0 in strip 0; a multiple of kVectorPixels where the width is one
  int tap_step_h, tap_step_w;  // rows / columns between neighbouring taps
  int num_phases, num_strips, num_tiles;  // phases that have outputs; those without taps come first
  int chunk_tiles, num_tile_chunks, num_chunks;  // a block walks along chunks of tiles
  int num_groups, in_channels_per_group, out_channels_per_group;
  int num_ic_blocks, num_sweeps, blocks_per_sweep;
  int window_units, ring_units, mirror_pixels;
  int ring_ic_blocks;  // side by side: all, or one
  int window_loads;    // how often a tile's window is loaded, block by block: once, where all lie side by side
  int ring_block_pixels;  // of one of them, the mirror included
  int store_bytes_per_warp;
  int batches_in_flight;  // of a data warp: loads under way
  int weight_stages;   // of kTapBytes; resident: all weights; otherwise each block of the sweep has a ring of
  int ring_stages;     // this many, so that warpgroups with different weights do not wait for each other
  int resident_weights;
  int alternate;       // warpgroups multiply in turns, and one stores its outputs while the other multiplies
  int sweep_tiles;           // weight tiles of one sweep, blocks_per_sweep * kTapBytes each
  int64_t num_weight_tiles;  // of all sweeps and groups
  int ring_bytes, smem_bytes;
  double cost;
  Phase phases[kMaxPhases];

  TCONV_HD int64_t partials_per_sample() const {
    return static_cast<int64_t>(num_strips) * num_phases * num_tiles * num_segments;
  }
};

inline int ceil_div(int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b); }
inline int round_up(int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b * b); }
inline int round_down(int64_t a, int64_t b) { return static_cast<int>(a >= 0 ? a / b * b : -((-a + b - 1) / b) * b); }

// Do quads of pixels come as aligned vectors, and channels in whole halves of a block? (If the tensor starts at one.)
inline bool loads_vectors(const ConvTransposeProblem& p) {
  const int64_t quad = kVectorPixels;
  return p.in_channels / p.groups % (kBlockIC / 2) == 0 && p.x_stride_w == 1 && p.in_w % quad == 0 && p.x_stride_n % quad == 0 &&
         p.x_stride_c % quad == 0 && p.x_stride_h % quad == 0;
}

// The parts of a plan that do not depend on the tile shape. Sets usable.
inline Plan plan_geometry(const ConvTransposeProblem& p) {
  Plan plan{};
  auto refuse = [&](const char* reason) {
    plan.usable = false;
    plan.reason = reason;
    return plan;
  };
  if (p.stride_h * p.stride_w > kMaxPhases) return refuse("more than 16 stride phases");
  const int64_t limit = int64_t(1) << 30;
  if (p.batch * p.groups > limit || p.in_h > limit || p.in_w > limit || p.out_h > limit || p.out_w > limit)
    return refuse("an extent over 2^30");
  plan.num_groups = static_cast<int>(p.groups);
  plan.in_channels_per_group = static_cast<int>(p.in_channels / p.groups);
  plan.out_channels_per_group = static_cast<int>(p.out_channels / p.groups);
  plan.num_ic_blocks = ceil_div(plan.in_channels_per_group, kBlockIC);
  // First the phases without taps: a tile's last products, and with them its window's last use, are then those of its last phase.
  int tapless = 0, leftmost = INT32_MAX;
  plan.row_offset = INT32_MAX;
  for (int with_taps = 0; with_taps < 2; ++with_taps) {
    for (int rh = 0; rh < p.stride_h && rh < p.out_h; ++rh) {
      for (int rw = 0; rw < p.stride_w && rw < p.out_w; ++rw) {
        const AxisPhase h = phase_h(p, rh), w = phase_w(p, rw);
        const bool has_taps = h.tap_count > 0 && w.tap_count > 0;
        if (has_taps != (with_taps == 1)) continue;
        Phase& phase = plan.phases[plan.num_phases++];
        phase.out_first_h = rh;
        phase.out_first_w = rw;
        phase.out_count_h = static_cast<int>(h.out_count);
        phase.out_count_w = static_cast<int>(w.out_count);
        if (!has_taps) {
          ++tapless;
          continue;
        }
        phase.taps_h = h.tap_count;
        phase.taps_w = w.tap_count;
        phase.row_shift = h.offset_first - (h.tap_count - 1) * h.offset_step;  // made relative below
        phase.col_shift = w.offset_first - (w.tap_count - 1) * w.offset_step;
        plan.row_offset = phase.row_shift < plan.row_offset ? phase.row_shift : plan.row_offset;
        leftmost = phase.col_shift < leftmost ? phase.col_shift : leftmost;
        plan.tap_step_h = h.offset_step;
        plan.tap_step_w = w.offset_step;
      }
    }
  }
  if (tapless == plan.num_phases) return refuse("no phase has taps");
  plan.col_offset = p.in_w % kVectorPixels == 0 ? round_down(leftmost, kVectorPixels) : leftmost;
  for (int i = tapless; i < plan.num_phases; ++i) {
    plan.phases[i].row_shift -= plan.row_offset;
    plan.phases[i].col_shift -= plan.col_offset;
  }
  plan.usable = true;
  return plan;
}

// Completes `plan` for a kernel and the given cut; false where it does not fit. `single`: chunks of one tile, whose windows
// start anew at the ring's first unit. `pooled`: whole pairs of rows to a segment, one strip, one phase. `stacked`: as many
// images to a line as there are.
inline bool plan_tiles(Plan& plan, const ConvTransposeProblem& p, Shape shape, int num_strips, int blocks_per_sweep,
                       bool single, bool pooled, bool stacked, bool side_by_side, int smem_limit, int num_sms) {
  const int n = shape.n;
  if (shape.scattered && loads_vectors(p)) return false;
  if (side_by_side && plan.num_ic_blocks == 1) return false;
  if (stacked && (num_strips > 1 || pooled || p.batch < 2 || !stacks(n))) return false;
  if (pooled && (num_strips > 1 || plan.num_phases > 1 || !shape.pools)) return false;
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
  // Rows below an image are zeros; those above the next one serve as well, so that the distance need only cover the image, its
  // outputs, and what taps of the last output row read beyond the next one's zeros.
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
  if (lines * plan.num_phases * plan.num_tiles * plan.num_segments * plan.out_channels_per_group > INT32_MAX / 2) return false;
  plan.sweep_tiles = all_taps * plan.num_ic_blocks;
  plan.num_weight_tiles = static_cast<int64_t>(plan.sweep_tiles) * plan.num_sweeps * plan.num_groups;
  for (int i = 0, base = 0; i < plan.num_phases; ++i) {
    Phase& phase = plan.phases[i];
    phase.first_pixel = phase.row_shift * plan.pitch + phase.col_shift;
    phase.weight_base = base;
    base += phase.taps_h * phase.taps_w * plan.num_ic_blocks;
  }

  // Shared memory. The ring wants the units of a window and those of the next tile; the weights want to be resident, or a
  // ring deep enough for one warpgroup to run ahead while another stores its outputs.
  if (plan.num_ic_blocks > 1 && !side_by_side) single = true;
  plan.ring_ic_blocks = side_by_side ? plan.num_ic_blocks : 1;
  plan.window_loads = plan.num_ic_blocks > plan.ring_ic_blocks ? plan.num_ic_blocks * plan.num_sweeps * with_taps : 1;
  plan.store_bytes_per_warp = pooled ? 8 * pool_store_pitch(n) * 4 : kStoreBytesPerWarp;
  const int store_bytes = 4 * shape.consumers * plan.store_bytes_per_warp;
  const int budget = smem_limit - store_bytes - kBarrierBytes - kAlignmentSlack;
  plan.window_units = ceil_div(plan.tile_pixels + plan.reach, kUnitPixels);
  plan.mirror_pixels = single ? 0 : round_up(n, kBatchPixels);
  // A later tile of a chunk may start within a unit.
  const int misaligned = ceil_div(plan.tile_pixels + plan.reach + kUnitPixels - 1, kUnitPixels);
  const int least_units = single ? plan.window_units : misaligned;
  const int most_units = single ? plan.window_units : misaligned + ceil_div(plan.tile_pixels, kUnitPixels);
  const int64_t all_stages = plan.num_weight_tiles * blocks_per_sweep;
  const int64_t wanted_stages[] = {all_stages, 6 * blocks_per_sweep, 4 * blocks_per_sweep, 3 * blocks_per_sweep};
  int stages = 0;
  for (int attempt = 0; attempt < 4 && stages == 0; ++attempt) {
    for (int units = most_units; units >= least_units && stages == 0; --units) {
      plan.ring_units = units;
      plan.ring_block_pixels = units * kUnitPixels + plan.mirror_pixels;
      plan.ring_bytes = plan.ring_ic_blocks * plan.ring_block_pixels * kPixelBytes;
      // A data warp's next batch lies less than a lap behind its last one, or it would take a unit of the lap before for a free one.
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
  // In turns, unless one would wait for what only the other's turn gives back: stages that both multiply by, or pixels before the
  // next channel block of the same tile. With resident weights turns gain 2 % and cost 7 % where the epilogue is long (GELU).
  plan.alternate = !plan.resident_weights && blocks_per_sweep == shape.consumers && plan.num_ic_blocks == plan.ring_ic_blocks;
  plan.smem_bytes = plan.ring_bytes + plan.weight_stages * kTapBytes + store_bytes + kBarrierBytes + kAlignmentSlack;

  // Cost in cycles of the busiest SM: the slowest of three, plus a share of the rest for imperfect overlap.
  // Multiplying: a 64 x N x 16 step takes N/2 cycles, or what reading both operands from shared memory takes.
  // DRAM (24 bytes a cycle and SM): the tile's new pixels and its outputs. L2 (28): those, pixels loaded again, weights.
  const double read = (2048.0 + 32.0 * n) / 112.0;
  const double step = n * 0.5 > read ? n * 0.5 : read;
  const double multiply = 1.0 * shape.consumers * plan.num_sweeps * all_taps * ceil_div(plan.in_channels_per_group, 16) * step;
  const double pixel_bytes = kBlockIC * 4.0;
  const int loads = plan.window_loads > 1 ? plan.window_loads : plan.num_ic_blocks;
  const double outputs = static_cast<double>(plan.tile_pixels) * plan.num_phases * plan.out_channels_per_group * 4.0;
  const double weights = plan.resident_weights ? 0 : 1.0 * plan.sweep_tiles * plan.num_sweeps * blocks_per_sweep * kTapBytes;
  // Short runs cost more: rows of a strip begin and end within units, and memory's pages are left sooner.
  const double runs = 1.0 + 100.0 / plan.tile_w;
  const double dram = runs * (plan.tile_pixels * pixel_bytes * plan.num_ic_blocks + outputs) / 24.0;
  // Windows that do not continue are loaded while nothing is multiplied.
  const double fresh = single ? 1.5 * (plan.tile_pixels + plan.reach) : plan.tile_pixels;
  const double l2 = (fresh * pixel_bytes * loads + outputs + weights) / 28.0;
  // Measured: with few bytes to many products a data warp had better load one batch at a time.
  plan.batches_in_flight = !single && plan.tile_pixels * pixel_bytes * loads / 24.0 < 0.21 * multiply ? 1 : 2;
  // A pass stores what it has multiplied: an SM sends 32 bytes a cycle, and 2000 cycles are latencies. In turns, one warpgroup
  // does so while the other multiplies.
  const int passes = plan.num_sweeps * plan.num_phases;
  const double stores = 2000.0 + shape.consumers * kBlockOC * 4.0 * n / 32.0;
  double compute = multiply + passes * stores;
  if (plan.alternate) {
    const double one = multiply / shape.consumers + passes * stores;
    compute = one > multiply ? one : multiply;
  }
  const double sum = compute + dram + l2;
  double slowest = compute > dram ? compute : dram;
  slowest = l2 > slowest ? l2 : slowest;
  // Measured: turns overlap better.
  double tile_cost = slowest + (plan.alternate && plan.num_ic_blocks == 1 ? 0.2 : 0.3) * (sum - slowest);
  // Blocks of input channels side by side in a ring of one window are given back after their last pass only.
  if (single && side_by_side) tile_cost += 0.5 * plan.window_units * kUnitPixels * pixel_bytes * plan.num_ic_blocks / 24.0;

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
  return true;
}

// The cheapest plan, or one that is not usable and says why. `moments`: of each sample's outputs may be wanted. `only` restricts
// it to one kernel (measurements).
inline Plan make_plan(const ConvTransposeProblem& p, bool pooled, bool moments, int smem_limit, int num_sms,
                      const Shape* only = nullptr) {
  const Plan geometry = plan_geometry(p);
  if (!geometry.usable) return geometry;
  Plan best = geometry;
  best.usable = false;
  best.reason = "no tile whose window fits in shared memory";
  for (const Shape& shape : kShapes) {
    if (only != nullptr && (only->consumers != shape.consumers || only->n != shape.n || only->producer_warps != shape.producer_warps))
      continue;
    for (int blocks = 1; blocks <= shape.consumers; ++blocks) {
      for (int strips = 1; strips <= 64; ++strips) {
        if ((p.out_w / p.stride_w) / strips < 24 && strips > 1) break;
        for (int kind = 0; kind < 8; ++kind) {
          const bool single = kind & 1, stacked = kind & 2, side_by_side = kind & 4;
          if (moments && stacked) continue;
          Plan plan = geometry;
          if (!plan_tiles(plan, p, shape, strips, blocks, single, pooled, stacked, side_by_side, smem_limit, num_sms)) continue;
          if (best.usable && plan.cost >= best.cost) continue;
          best = plan;
          best.reason = "";
        }
      }
    }
  }
  return best;
}

}  // namespace sm90
}  // namespace tconv
