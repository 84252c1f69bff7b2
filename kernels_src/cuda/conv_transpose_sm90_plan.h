// How the Hopper kernel cuts a transposed convolution into work: plain host C++, no CUDA, so that it can be
// tested anywhere. The kernel and its launcher read nothing but this plan.
//
// Terms. A *strip* is one phase of one sample and group, cut across its columns into equal parts (one, where the window
// fits). Its outputs, row after row at a *pitch* that leaves room for the zeros between rows, are one *line* of pixels, and
// so is its input at the same pitch: a tap is a shift along the line. A *tile* is the next num_segments x N pixels of the
// line, whatever rows they lie in; a *segment* is N of them, one wgmma wide. Pixels between rows are computed and dropped.
// A *sweep* is the part of a tile that the consumer warpgroups compute together: blocks_per_sweep blocks of 64
// output channels by num_segments segments, a warpgroup each.
// The *window* of a tile is the input it needs: its own pixels and `reach` more, by 64 channels. Windows are loaded in
// *units* of pixels into a ring in shared memory; tiles that follow each other along a line, a *chunk*, share units. The
// ring's first mirror_pixels are repeated behind its end, so that a segment never wraps; a ring of exactly one window is
// never wrapped and needs no mirror.
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
  bool pools;  // compiled with the pooling epilogue too
};
constexpr Shape kShapes[] = {{2, 216, true}, {2, 128, false}};  // the compiled kernels
constexpr int kVectorPixels = 4;       // pixels that a producer thread loads at once

// Shared memory next to ring and weight stages: buffers of outputs on their way to memory, barriers, and slack to
// align the ring to 1024 bytes.
constexpr int kStoreColumns = 64;
constexpr int kStoreChannels = 8;
constexpr int kStoreBytesPerWarp = kStoreChannels * (kStoreColumns + 8) * 4;
// With pooling: 8 channels of a segment's column pairs, rows an odd number of 16 bytes, so that they spread over the banks.
TCONV_HD constexpr int pool_store_pitch(int n) { return n / 2 / 4 % 2 == 1 ? n / 2 : n / 2 + 4; }
constexpr int kBarrierBytes = 2 * 8 * (kMaxRingUnits + kMaxWeightStages);
constexpr int kAlignmentSlack = 1024;

struct Phase {
  int out_first_h, out_first_w;   // residues
  int out_count_h, out_count_w;   // outputs of this phase
  int taps_h, taps_w;
  int row_offset;                 // input row of the line's row 0
  int col_offset;                 // input column of the line's column 0 in strip 0, a multiple of kVectorPixels
  int col_shift;                  // column of the leftmost tap of output column 0
  int weight_base;                // first weight tile of this phase, in tiles of one sweep
};

struct Plan {
  bool usable;
  const char* reason;  // why not usable
  int num_consumers;   // warpgroups that multiply
  int n;               // columns of a segment's wgmma
  int tile_w, pitch;   // output columns of a strip; pixels of the line per row
  int num_segments;
  int segment_pixels;  // of a segment's n: all, or with pooling the whole pairs of rows among them
  int tile_pixels;
  int pooled;          // outputs are 2 x 2 windows' largest (or smallest) values
  int reach;           // pixels of a window beyond its tile's, the most over phases
  int tap_step_h, tap_step_w;  // rows / columns between neighbouring taps
  int num_phases, num_strips, num_tiles;
  int chunk_tiles, num_tile_chunks, num_chunks;  // a block walks along chunks of tiles
  int num_groups, in_channels_per_group, out_channels_per_group;
  int num_ic_blocks, num_sweeps, blocks_per_sweep;
  int window_units, ring_units, mirror_pixels;
  int store_bytes_per_warp;
  int batches_in_flight;  // of a data warp: loads under way
  int weight_stages;   // of kTapBytes; resident: all weights; otherwise each block of the sweep has a ring of
  int ring_stages;     // this many, so that warpgroups with different weights do not wait for each other
  int resident_weights;
  int64_t num_weight_tiles;  // weight tiles of one sweep: blocks_per_sweep * kTapBytes each
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
  plan.num_phases = static_cast<int>(p.stride_h * p.stride_w);
  int index = 0;
  for (int rh = 0; rh < p.stride_h; ++rh) {
    for (int rw = 0; rw < p.stride_w; ++rw) {
      const AxisPhase h = phase_h(p, rh), w = phase_w(p, rw);
      if (h.tap_count == 0 || w.tap_count == 0) return refuse("a phase without taps");
      Phase& phase = plan.phases[index++];
      phase.out_first_h = rh;
      phase.out_first_w = rw;
      phase.out_count_h = static_cast<int>(h.out_count);
      phase.out_count_w = static_cast<int>(w.out_count);
      phase.taps_h = h.tap_count;
      phase.taps_w = w.tap_count;
      phase.row_offset = h.offset_first - (h.tap_count - 1) * h.offset_step;
      const int leftmost = w.offset_first - (w.tap_count - 1) * w.offset_step;
      phase.col_offset = round_down(leftmost, kVectorPixels);
      phase.col_shift = leftmost - phase.col_offset;
      plan.tap_step_h = h.offset_step;
      plan.tap_step_w = w.offset_step;
    }
  }
  plan.usable = true;
  return plan;
}

// Completes `plan` for a kernel and the given cut; false where it does not fit. `single`: chunks of one tile, whose windows
// start anew at the ring's first unit. `pooled`: whole pairs of rows to a segment, one strip, one phase.
inline bool plan_tiles(Plan& plan, const ConvTransposeProblem& p, Shape shape, int num_strips, int blocks_per_sweep,
                       bool single, bool pooled, int smem_limit, int num_sms) {
  const int n = shape.n;
  if (pooled && (num_strips > 1 || plan.num_phases > 1 || !shape.pools)) return false;
  int max_w = 0, needed_pitch = 8, all_taps = 0;
  for (int i = 0; i < plan.num_phases; ++i) {
    const Phase& phase = plan.phases[i];
    max_w = phase.out_count_w > max_w ? phase.out_count_w : max_w;
  }
  plan.num_strips = num_strips;
  plan.tile_w = num_strips == 1 ? max_w : round_up(ceil_div(max_w, num_strips), 4);
  if (num_strips > 1) plan.num_strips = ceil_div(max_w, plan.tile_w);
  for (int i = 0; i < plan.num_phases; ++i) {
    const Phase& phase = plan.phases[i];
    const int span_w = (phase.taps_w - 1) * plan.tap_step_w;
    int pitch = plan.tile_w + phase.col_shift + span_w;
    if (plan.num_strips == 1) {
      // One strip: the zeros left of a row serve as the zeros right of the row before it, so the pitch need only
      // cover the image and the larger reach; column_offset <= 0 zeros lie left, and reads beyond wrap into them.
      const int left = -phase.col_offset;
      const int right = pitch - left - static_cast<int>(p.in_w);  // columns read beyond the image's right edge
      const int shared = left + static_cast<int>(p.in_w) + (right > left ? right - left : 0);
      if (left >= 0 && shared < pitch) pitch = shared;
      if (pitch < plan.tile_w) pitch = plan.tile_w;
    }
    pitch = round_up(pitch, kVectorPixels);
    needed_pitch = pitch > needed_pitch ? pitch : needed_pitch;
    all_taps += phase.taps_h * phase.taps_w;
  }
  plan.n = n;
  plan.pitch = needed_pitch;
  plan.num_consumers = shape.consumers;
  plan.blocks_per_sweep = blocks_per_sweep;
  plan.num_segments = shape.consumers / blocks_per_sweep;
  plan.pooled = pooled ? 1 : 0;
  plan.segment_pixels = pooled ? n / (2 * plan.pitch) * (2 * plan.pitch) : n;
  plan.tile_pixels = plan.num_segments * plan.segment_pixels;
  if (plan.segment_pixels == 0) return false;
  const int out_blocks = ceil_div(plan.out_channels_per_group, kBlockOC);
  if (out_blocks % blocks_per_sweep != 0 || shape.consumers % blocks_per_sweep != 0) return false;
  plan.num_sweeps = out_blocks / plan.blocks_per_sweep;
  int64_t longest = 0, reach = 0;
  for (int i = 0; i < plan.num_phases; ++i) {
    const Phase& phase = plan.phases[i];
    const int64_t pixels = static_cast<int64_t>(phase.out_count_h - 1) * plan.pitch + plan.tile_w;
    const int64_t needs = static_cast<int64_t>(phase.taps_h - 1) * plan.tap_step_h * plan.pitch + phase.col_shift +
                          (phase.taps_w - 1) * plan.tap_step_w;
    longest = pixels > longest ? pixels : longest;
    reach = needs > reach ? needs : reach;
  }
  if (longest > INT32_MAX / 4 || reach > kMaxRingUnits * kUnitPixels) return false;
  plan.reach = static_cast<int>(reach);
  plan.num_tiles = ceil_div(longest, plan.tile_pixels);
  const int64_t lines = p.batch * plan.num_groups * plan.num_strips * plan.num_phases;
  if (lines * plan.num_tiles * plan.num_segments * plan.out_channels_per_group > INT32_MAX / 2) return false;
  plan.num_weight_tiles = static_cast<int64_t>(all_taps) * plan.num_ic_blocks * plan.num_sweeps * plan.num_groups;
  int base = 0;
  for (int i = 0; i < plan.num_phases; ++i) {
    plan.phases[i].weight_base = base;
    base += plan.phases[i].taps_h * plan.phases[i].taps_w * plan.num_ic_blocks * plan.num_sweeps * plan.num_groups;
  }

  // Shared memory. The ring wants the units of a window and those of the next tile; the weights want to be resident, or a
  // ring deep enough for one warpgroup to run ahead while another stores its outputs.
  if (plan.num_ic_blocks > 1) single = true;
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
      plan.ring_bytes = (units * kUnitPixels + plan.mirror_pixels) * kPixelBytes;
      if (units > kMaxRingUnits || plan.ring_bytes > budget || wanted_stages[attempt] > kMaxWeightStages) continue;
      const int fitting = (budget - plan.ring_bytes) / kTapBytes;
      if (fitting >= wanted_stages[attempt]) stages = fitting < kMaxWeightStages ? fitting : kMaxWeightStages;
    }
  }
  if (stages == 0) return false;
  plan.resident_weights = all_stages <= stages ? 1 : 0;
  plan.ring_stages = stages / blocks_per_sweep;
  plan.weight_stages = plan.resident_weights ? static_cast<int>(all_stages) : plan.ring_stages * blocks_per_sweep;
  plan.smem_bytes = plan.ring_bytes + plan.weight_stages * kTapBytes + store_bytes + kBarrierBytes + kAlignmentSlack;

  // Cost in cycles of the busiest SM: the slowest of three, plus a share of the rest for imperfect overlap.
  // Multiplying: a 64 x N x 16 step takes N/2 cycles, or what reading both operands from shared memory takes.
  // DRAM (24 bytes a cycle and SM): the tile's new pixels and its outputs. L2 (28): those, pixels loaded again, weights.
  const double read = (2048.0 + 32.0 * n) / 112.0;
  const double step = n * 0.5 > read ? n * 0.5 : read;
  const double taps_mean = static_cast<double>(all_taps) / plan.num_phases;
  const double multiply = 1.0 * shape.consumers * plan.num_sweeps * taps_mean * ceil_div(plan.in_channels_per_group, 16) * step;
  const double pixel_bytes = kBlockIC * 4.0;
  const int loads = plan.num_ic_blocks * (plan.num_ic_blocks > 1 ? plan.num_sweeps : 1);
  const double outputs = static_cast<double>(plan.tile_pixels) * plan.out_channels_per_group * 4.0;
  const double weights = plan.resident_weights ? 0 : taps_mean * plan.num_ic_blocks * plan.num_sweeps * blocks_per_sweep * kTapBytes;
  // Short runs cost more: rows of a strip begin and end within units, and memory's pages are left sooner.
  const double runs = 1.0 + 100.0 / plan.tile_w;
  const double dram = runs * (plan.tile_pixels * pixel_bytes * plan.num_ic_blocks + outputs) / 24.0;
  // Windows that do not continue are loaded while nothing is multiplied.
  const double fresh = single ? 1.5 * (plan.tile_pixels + plan.reach) : plan.tile_pixels;
  const double l2 = (fresh * pixel_bytes * loads + outputs + weights) / 28.0;
  // Measured: with few bytes to many products a data warp had better load one batch at a time.
  plan.batches_in_flight = plan.tile_pixels * pixel_bytes * loads / 24.0 < 0.21 * multiply ? 1 : 2;
  const double sum = multiply + dram + l2;
  double slowest = multiply > dram ? multiply : dram;
  slowest = l2 > slowest ? l2 : slowest;
  const double tile_cost = slowest + 0.3 * (sum - slowest);

  // Chunks of tiles: long ones load few pixels twice, short ones share out evenly. A new chunk costs the pixels of its
  // reach and the time until the first unit is there.
  const double restart_cost = single ? 300.0 : plan.reach * pixel_bytes / 24.0 + 1500.0;
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

// The cheapest plan, or one that is not usable and says why. `only` restricts it to one kernel (measurements).
inline Plan make_plan(const ConvTransposeProblem& p, bool pooled, int smem_limit, int num_sms, const Shape* only = nullptr) {
  const Plan geometry = plan_geometry(p);
  if (!geometry.usable) return geometry;
  Plan best = geometry;
  best.usable = false;
  best.reason = "no tile whose window fits in shared memory";
  for (const Shape& shape : kShapes) {
    if (only != nullptr && (only->consumers != shape.consumers || only->n != shape.n)) continue;
    for (int blocks = 1; blocks <= shape.consumers; ++blocks) {
      for (int strips = 1; strips <= 64; ++strips) {
        if ((p.out_w / p.stride_w) / strips < 24 && strips > 1) break;
        for (int single = 0; single < 2; ++single) {
          Plan plan = geometry;
          if (!plan_tiles(plan, p, shape, strips, blocks, single != 0, pooled, smem_limit, num_sms)) continue;
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
