// Tile geometry of the portable tensor-core kernel and the rule that picks it. Plain C++, no device calls.
//
// A tile is BLOCK_PIX output pixels of one phase of one sample; its window holds every input pixel that some of
// them reads through some tap of a rectangular group of taps. Two layouts share all code:
//   rectangle: tile_h lines x tile_w columns; window lines are window_pitch pixels apart.
//   flat:      consecutive positions of the image walked as one line, rows window_pitch positions apart, with so
//              many zero columns between rows that a tap never reads a neighbouring row's data. No ragged right
//              edge, for a taller window: good for narrow images.
#pragma once

#include <cmath>

#include "../layer.h"
#include "conv_transpose_portable_config.h"

namespace tconv {
namespace cuda {

struct TileGeometry {
  int window_pitch;   // window pixels from one line to the next; a multiple of 8 for rectangles
  int segment_width;  // tile pixels that are consecutive in the window
  int line_width;     // tile position p is line p / line_width, column p % line_width
  int tile_pixels;    // positions of a tile that are outputs; the rest of BLOCK_PIX is idle
  int tiles_h, tiles_w;
  int flat_step, line_step, column_step;  // what one tile adds to the origin
  int group_h, group_w;                   // taps per window
  int window_pixels;                      // rounded up to whole fills
  int window_buffers;
  int64_t smem_bytes;
  double cost;
};

// What the device allows.
struct TileLimits {
  int sm_count;
  int64_t smem_per_block, smem_per_sm, smem_reserved;
};

// One axis over all phases.
struct AxisSummary {
  int max_taps = 0, tap_step = 1, offset_step = 1;
  int64_t max_count = 0;  // outputs of the longest phase
  int64_t flat_pitch = 0;
};

inline AxisSummary summarize_axis(int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t padding,
                                  int64_t dilation) {
  AxisSummary s;
  const int64_t classes = stride / gcd(stride, dilation);
  s.tap_step = static_cast<int>(classes);
  s.offset_step = static_cast<int>(dilation / gcd(stride, dilation));
  s.max_count = (out + stride - 1) / stride;
  s.flat_pitch = s.max_count;
  for (int64_t k = 0; k < kernel && k < classes; ++k) {
    int64_t residue = (k * dilation - padding) % stride;
    if (residue < 0) residue += stride;
    const AxisPhase phase = make_axis_phase(out, kernel, stride, padding, dilation, residue);
    // Also of a phase without outputs: its tiles are launched like the others', and walk their windows.
    if (phase.tap_count > s.max_taps) s.max_taps = phase.tap_count;
    if (phase.out_count == 0) continue;
    // A read past a line's end must find zeros both where it belongs and at the next line's head.
    const int64_t first_read = phase.offset_first - static_cast<int64_t>(phase.tap_count - 1) * s.offset_step;
    if (in - first_read > s.flat_pitch) s.flat_pitch = in - first_read;
    if (phase.out_count + phase.offset_first > s.flat_pitch) s.flat_pitch = phase.out_count + phase.offset_first;
  }
  return s;
}

inline int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }
inline int64_t ceil_div(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

// Completes `g` (layout fields set) for group_h x group_w taps. False where it does not fit.
// The cost unit is one (tap, pixel, channel block) of products; weights are estimates, checked by timing.
template <typename Config>
bool finish_geometry(TileGeometry* g, const AxisSummary& h, const AxisSummary& w, int64_t num_ic_blocks,
                     int64_t tiles_elsewhere, const TileLimits& limits) {
  constexpr double kFillCost = 0.35;           // per window pixel
  constexpr double kSectorCost = 35.0;         // per 32-byte run of outputs, all channels of the block
  constexpr double kExposedRoundCost = 250.0;  // per round of fills that no products hide
  constexpr double kOneBlockPenalty = 1.25;

  const bool flat = g->flat_step != 0;
  const int64_t reach_h = static_cast<int64_t>(g->group_h - 1) * h.offset_step;
  const int64_t reach_w = static_cast<int64_t>(g->group_w - 1) * w.offset_step;
  int64_t pixels;
  if (flat) {
    pixels = Config::BLOCK_PIX + reach_h * g->window_pitch + reach_w;
  } else {
    const int64_t pitch = round_up(g->line_width + reach_w, 8);
    if (pitch > INT32_MAX / 2) return false;
    g->window_pitch = static_cast<int>(pitch);
    pixels = (g->line_step + reach_h) * pitch;
  }
  pixels = round_up(pixels, Config::kFillPixels);
  if (pixels * Config::PIXEL_BYTES > limits.smem_per_block) return false;
  const int64_t windows = h.max_taps == 0 || w.max_taps == 0
                              ? 0
                              : ceil_div(h.max_taps, g->group_h) * ceil_div(w.max_taps, g->group_w) * num_ic_blocks;
  g->window_pixels = static_cast<int>(pixels);
  g->window_buffers = windows > 1 ? 2 : 1;
  g->smem_bytes = Config::smem_bytes(pixels, g->window_buffers);
  if (g->smem_bytes > limits.smem_per_block) return false;
  int64_t blocks_per_sm = limits.smem_per_sm / (g->smem_bytes + limits.smem_reserved);
  if (blocks_per_sm < 1) return false;
  if (blocks_per_sm > Config::kMinBlocksPerSm) blocks_per_sm = Config::kMinBlocksPerSm;

  const double products = static_cast<double>(h.max_taps) * w.max_taps * num_ic_blocks * Config::BLOCK_PIX;
  const double fill_pixels = static_cast<double>(windows) * pixels;
  const int64_t steps = static_cast<int64_t>(g->group_h) * g->group_w;
  const int64_t fills = ceil_div(pixels, Config::kFillPixels * (Config::kNumWarps / Config::kChunks));
  const int64_t hidden_fills = steps * Config::kFillsInFlight;
  const int64_t exposed_rounds = fills > hidden_fills ? ceil_div(fills - hidden_fills, Config::kLateFills) : 0;
  const int64_t runs = flat ? 2 + Config::BLOCK_PIX / g->window_pitch : g->line_step;
  const double sectors = static_cast<double>(Config::BLOCK_PIX / 8 + runs);
  const double exposed = static_cast<double>(windows * exposed_rounds);
  double per_tile = products + kFillCost * fill_pixels + kExposedRoundCost * exposed + kSectorCost * sectors;
  if (blocks_per_sm == 1) per_tile *= kOneBlockPenalty;
  const double tiles = static_cast<double>(g->tiles_h) * g->tiles_w * static_cast<double>(tiles_elsewhere);
  if (tiles > INT32_MAX) return false;  // one grid dimension
  const double slots = static_cast<double>(limits.sm_count) * static_cast<double>(blocks_per_sm);
  const double waves = tiles < 8 * slots ? std::ceil(tiles / slots) : tiles / slots;
  g->cost = per_tile * waves * static_cast<double>(blocks_per_sm);
  return true;
}

// Calls visit(geometry) for every candidate that fits. tiles_elsewhere = samples * phases * groups * channel blocks.
template <typename Config, typename Visit>
void for_each_geometry(const ConvTransposeLayer& p, int64_t tiles_elsewhere, const TileLimits& limits, Visit&& visit) {
  const AxisSummary h = summarize_axis(p.in_h, p.out_h, p.kernel_h, p.stride_h, p.padding_h, p.dilation_h);
  const AxisSummary w = summarize_axis(p.in_w, p.out_w, p.kernel_w, p.stride_w, p.padding_w, p.dilation_w);
  const int64_t num_ic_blocks = ceil_div(p.in_channels / p.groups, Config::BLOCK_IC);
  const auto consider = [&](TileGeometry g) {
    // One window for all taps, then more windows with fewer taps each, down to one.
    for (int64_t splits_h = 1;; ++splits_h) {
      g.group_h = h.max_taps == 0 ? 1 : static_cast<int>(ceil_div(h.max_taps, splits_h));
      for (int64_t splits_w = 1;; ++splits_w) {
        g.group_w = w.max_taps == 0 ? 1 : static_cast<int>(ceil_div(w.max_taps, splits_w));
        if (finish_geometry<Config>(&g, h, w, num_ic_blocks, tiles_elsewhere, limits)) visit(g);
        if (g.group_w == 1) break;
        while (ceil_div(w.max_taps, splits_w + 1) == g.group_w) ++splits_w;
      }
      if (g.group_h == 1) break;
      while (ceil_div(h.max_taps, splits_h + 1) == g.group_h) ++splits_h;
    }
  };

  for (int tile_w = 8; tile_w <= Config::BLOCK_PIX; tile_w += 8) {
    TileGeometry g{};
    g.line_width = g.segment_width = g.column_step = tile_w;
    g.line_step = Config::BLOCK_PIX / tile_w;
    g.tile_pixels = g.line_step * tile_w;
    g.tiles_h = static_cast<int>(ceil_div(h.max_count, g.line_step));
    g.tiles_w = static_cast<int>(ceil_div(w.max_count, tile_w));
    consider(g);
  }
  const int64_t flat_positions = (h.max_count - 1) * w.flat_pitch + w.max_count;
  if (flat_positions < INT32_MAX / 2) {
    TileGeometry g{};
    g.window_pitch = g.line_width = static_cast<int>(w.flat_pitch);
    g.segment_width = g.flat_step = g.tile_pixels = Config::BLOCK_PIX;
    g.tiles_h = static_cast<int>(ceil_div(flat_positions, Config::BLOCK_PIX));
    g.tiles_w = 1;
    consider(g);
  }
}

// The cheapest geometry; false where none fits (then another kernel must do the call).
template <typename Config>
bool choose_geometry(const ConvTransposeLayer& p, int64_t tiles_elsewhere, const TileLimits& limits,
                     TileGeometry* best) {
  bool found = false;
  for_each_geometry<Config>(p, tiles_elsewhere, limits, [&](const TileGeometry& g) {
    if (found && !(g.cost < best->cost)) return;
    *best = g;
    found = true;
  });
  return found;
}

}  // namespace cuda
}  // namespace tconv
