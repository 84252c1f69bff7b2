// How the Hopper kernel cuts a transposed convolution into work: plain host C++, no CUDA, so that it can be
// tested anywhere. The kernel and its launcher read nothing but this plan.
//
// Terms. A *tile* is `rows_per_tile` x `tile_w` outputs of one phase of one sample and group, for all output
// channels. A *sweep* is the part of a tile that the consumer warpgroups compute together: blocks_per_sweep blocks of 64
// output channels by num_segments segments, a warpgroup each. A *segment* is segment_rows rows: one wgmma of N columns
// covers it, walking the window as a flat line of pixels of pitch `pitch`, so the columns between two rows are
// computed and dropped.
// The *window* of a tile is the input it needs: rows_per_tile + span_h rows of `pitch` pixels by 64 channels.
// Windows live in a ring of `ring_rows` rows in shared memory; tiles that follow each other down an image, a *chunk*,
// share rows. The first segment_rows - 1 rows of the ring are mirrored behind its end: a segment never wraps.
#pragma once

#include "../call.h"

namespace tconv {
namespace sm90 {

constexpr int kBlockOC = 64;           // output channels of a warpgroup: wgmma's M
constexpr int kBlockIC = 64;           // channels of a window: 128 bytes of 16-bit values per pixel
constexpr int kPixelBytes = 128;
constexpr int kTapBytes = kBlockOC * kPixelBytes;  // one tap's weights for 64 output channels
constexpr int kMaxPhases = 16;
constexpr int kMaxRingRows = 64;
constexpr int kMaxWeightStages = 24;
struct Shape {
  int consumers, n;
};
constexpr Shape kShapes[] = {{2, 128}, {2, 184}, {2, 216}, {3, 88}};  // the compiled kernels
constexpr int kVectorPixels = 4;       // pixels that a producer thread loads at once

// Shared memory next to ring and weight stages: buffers of outputs on their way to memory, barriers, and slack to
// align the ring to 1024 bytes.
constexpr int kStoreColumns = 32;
constexpr int kStoreBytesPerWarp = 8 * (kStoreColumns + 8) * 4;
constexpr int kBarrierBytes = 2 * 8 * (kMaxRingRows + kMaxWeightStages);
constexpr int kAlignmentSlack = 1024;

struct Phase {
  int out_first_h, out_first_w;   // residues
  int out_count_h, out_count_w;   // outputs of this phase
  int taps_h, taps_w;
  int row_offset;                 // input row of window row 0 of a tile at output row 0
  int col_offset;                 // input column of window column 0 of strip 0, a multiple of kVectorPixels
  int col_shift;                  // window column of the leftmost tap of output column 0
  int weight_base;                // first weight tile of this phase, in tiles of one sweep
};

struct Plan {
  bool usable;
  const char* reason;  // why not usable
  int num_consumers;   // warpgroups that multiply
  int n;               // columns of a segment's wgmma
  int segment_rows, tile_w, pitch;
  int rows_per_tile, num_segments;
  int span_h;          // extra window rows, the largest over phases
  int tap_step_h, tap_step_w;  // window rows / columns between neighbouring taps
  int num_phases, num_strips, num_row_tiles;
  int chunk_row_tiles, num_row_chunks, num_chunks;  // a block walks down chunks of row tiles
  int num_groups, in_channels_per_group, out_channels_per_group;
  int num_ic_blocks, num_sweeps, blocks_per_sweep;
  int ring_rows, weight_stages, resident_weights;
  int64_t num_weight_tiles;  // weight tiles of one sweep: blocks_per_sweep * kTapBytes each
  int ring_bytes, smem_bytes;
  double cost;
  Phase phases[kMaxPhases];

  TCONV_HD int64_t partials_per_sample() const {
    return static_cast<int64_t>(num_strips) * num_phases * num_row_tiles * num_segments;
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
      const int span = (h.tap_count - 1) * h.offset_step;
      if (span > plan.span_h) plan.span_h = span;
    }
  }
  if (plan.span_h > kMaxRingRows) return refuse("the taps span too many rows");
  plan.usable = true;
  return plan;
}

// Completes `plan` for a kernel and the given cut; false where it does not fit.
inline bool plan_tiles(Plan& plan, const ConvTransposeProblem& p, Shape shape, int num_strips, int blocks_per_sweep,
                       int smem_limit, int num_sms) {
  const int n = shape.n;
  int max_w = 0, max_h = 0, needed_pitch = 8, all_taps = 0;
  for (int i = 0; i < plan.num_phases; ++i) {
    const Phase& phase = plan.phases[i];
    max_w = phase.out_count_w > max_w ? phase.out_count_w : max_w;
    max_h = phase.out_count_h > max_h ? phase.out_count_h : max_h;
  }
  plan.num_strips = num_strips;
  plan.tile_w = num_strips == 1 ? max_w : round_up(ceil_div(max_w, num_strips), 8);
  if (num_strips > 1) plan.num_strips = ceil_div(max_w, plan.tile_w);
  if (plan.tile_w > n) return false;
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
  plan.segment_rows = 1 + (n - plan.tile_w) / plan.pitch;
  const int out_blocks = ceil_div(plan.out_channels_per_group, kBlockOC);
  if (out_blocks % blocks_per_sweep != 0 || shape.consumers % blocks_per_sweep != 0) return false;
  plan.num_sweeps = out_blocks / plan.blocks_per_sweep;
  const int tallest = ceil_div(max_h, plan.num_segments);  // no taller than the image needs
  if (plan.segment_rows > tallest) plan.segment_rows = tallest;
  plan.rows_per_tile = plan.segment_rows * plan.num_segments;
  plan.num_row_tiles = ceil_div(max_h, plan.rows_per_tile);
  const int64_t columns = p.batch * plan.num_groups * plan.num_strips * plan.num_phases;
  if (columns * plan.num_row_tiles * plan.num_segments * plan.out_channels_per_group > INT32_MAX / 2) return false;
  plan.num_weight_tiles = static_cast<int64_t>(all_taps) * plan.num_ic_blocks * plan.num_sweeps * plan.num_groups;
  int base = 0;
  for (int i = 0; i < plan.num_phases; ++i) {
    plan.phases[i].weight_base = base;
    base += plan.phases[i].taps_h * plan.phases[i].taps_w * plan.num_ic_blocks * plan.num_sweeps * plan.num_groups;
  }

  // Shared memory. The ring wants the rows of a window and those of the next; the weights want to be resident, or a
  // ring deep enough for one warpgroup to run ahead while the other stores its outputs.
  const int store_bytes = 4 * shape.consumers * kStoreBytesPerWarp;
  const int budget = smem_limit - store_bytes - kBarrierBytes - kAlignmentSlack;
  const int stage_bytes = kTapBytes * plan.blocks_per_sweep;
  const int window_rows = plan.rows_per_tile + plan.span_h;
  const int next_rows = plan.num_ic_blocks > 1 ? window_rows : plan.rows_per_tile;
  auto stages_beside = [&](int rows) {  // weight stages that fit beside a ring of that many rows; sets its size
    const int64_t mirrored = static_cast<int64_t>(rows + plan.segment_rows - 1) * plan.pitch;
    const int64_t last_read = static_cast<int64_t>(rows) * plan.pitch + n;  // n pixels from the last row's taps
    plan.ring_rows = rows;
    plan.ring_bytes = round_up((mirrored > last_read ? mirrored : last_read) * kPixelBytes, 1024);
    const int stages = (budget - plan.ring_bytes) / stage_bytes;
    if (rows > kMaxRingRows || plan.ring_bytes > budget) return 0;
    return stages < kMaxWeightStages ? stages : kMaxWeightStages;
  };
  const int least_rows[] = {window_rows + ceil_div(next_rows, 2), window_rows + ceil_div(next_rows, 2), window_rows};
  const int64_t wanted_stages[] = {plan.num_weight_tiles, 6, 2};
  int stages = 0;
  for (int attempt = 0; attempt < 3 && stages == 0; ++attempt) {
    for (int rows = window_rows + next_rows; rows >= least_rows[attempt] && stages == 0; --rows) {
      const int fitting = stages_beside(rows);
      if (fitting >= wanted_stages[attempt]) stages = fitting;
    }
  }
  if (stages == 0) return false;
  plan.resident_weights = plan.num_weight_tiles <= stages ? 1 : 0;
  plan.weight_stages = plan.resident_weights ? static_cast<int>(plan.num_weight_tiles) : stages;
  plan.smem_bytes = plan.ring_bytes + plan.weight_stages * stage_bytes + store_bytes + kBarrierBytes + kAlignmentSlack;

  // Cost in cycles of the busiest SM: the slowest of three, plus a share of the rest for imperfect overlap.
  // Multiplying: a 64 x N x 16 step takes N/2 cycles, or what reading both operands from shared memory takes.
  // DRAM (about 18 bytes a cycle and SM): the tile's new rows and its outputs. L2 (about 24): those and weights.
  const double read = (2048.0 + 32.0 * n) / 112.0;
  const double step = n * 0.5 > read ? n * 0.5 : read;
  const double taps_mean = static_cast<double>(all_taps) / plan.num_phases;
  const double multiply = 1.0 * shape.consumers * plan.num_sweeps * taps_mean * ceil_div(plan.in_channels_per_group, 16) * step;
  const int reloads = plan.num_ic_blocks > 1 ? plan.num_ic_blocks * plan.num_sweeps : 1;
  const double rows_loaded = plan.num_ic_blocks > 1 ? window_rows : plan.rows_per_tile + 0.1 * plan.span_h;
  const double moved = rows_loaded * reloads * plan.pitch * kBlockIC * 4.0 +
                       static_cast<double>(plan.rows_per_tile) * plan.tile_w * plan.out_channels_per_group * 4.0;
  const double weights = plan.resident_weights ? 0 : taps_mean * plan.num_ic_blocks * plan.num_sweeps * stage_bytes;
  const double dram = moved / 18.0, l2 = (moved + weights) / 24.0;
  const double sum = multiply + dram + l2;
  double slowest = multiply > dram ? multiply : dram;
  slowest = l2 > slowest ? l2 : slowest;
  const double tile_cost = slowest + 0.1 * (sum - slowest);

  // Chunks of row tiles: long ones load few rows twice, short ones share out evenly. A new chunk costs the rows above
  // its own and the time until the first row is there.
  const double restart_cost = plan.span_h * plan.pitch * kBlockIC * 4.0 / 18.0 + 1500.0;
  plan.cost = 0;
  for (int rows_of_tiles = 1; rows_of_tiles <= plan.num_row_tiles && rows_of_tiles <= 64; ++rows_of_tiles) {
    const int chunks = ceil_div(plan.num_row_tiles, rows_of_tiles);
    const int rounds = ceil_div(columns * chunks, num_sms);
    const double cost = rounds * (rows_of_tiles * tile_cost + restart_cost);
    if (plan.cost != 0 && cost >= plan.cost) continue;
    plan.cost = cost;
    plan.chunk_row_tiles = rows_of_tiles;
    plan.num_row_chunks = chunks;
    plan.num_chunks = static_cast<int>(columns * chunks);
  }
  return true;
}

// The cheapest plan, or one that is not usable and says why. `only` restricts it to one kernel (measurements).
inline Plan make_plan(const ConvTransposeProblem& p, int smem_limit, int num_sms, const Shape* only = nullptr) {
  const Plan geometry = plan_geometry(p);
  if (!geometry.usable) return geometry;
  Plan best = geometry;
  best.usable = false;
  best.reason = "no tile whose window fits in shared memory";
  for (const Shape& shape : kShapes) {
    if (only != nullptr && (only->consumers != shape.consumers || only->n != shape.n)) continue;
    for (int blocks = 1; blocks <= 2; ++blocks) {
      for (int strips = 1; strips <= 64; ++strips) {
        if ((p.out_w / p.stride_w) / strips < 24 && strips > 1) break;
        Plan plan = geometry;
        if (!plan_tiles(plan, p, shape, strips, blocks, smem_limit, num_sms)) continue;
        if (best.usable && plan.cost >= best.cost) continue;
        best = plan;
        best.reason = "";
      }
    }
  }
  return best;
}

}  // namespace sm90
}  // namespace tconv
