// How the packed convolution cuts a layer into pieces: phases, channel tiles, blocks of rows, scratch sizes.
//
// Within a phase the image is walked as one line: the rows of the input are copied one after another, `pitch` floats
// apart, with zeros around them, so that every tap is a constant offset into the line and no tile meets an edge.
#pragma once

#include <algorithm>
#include <vector>

#include "../call.h"
#include "conv_transpose_tile.h"

namespace tconv {
namespace cpu {

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Rounded up to cache lines, and to an odd number of them so that neighbouring planes use different cache sets.
inline int64_t padded_plane(int64_t floats) { return (ceil_div(floats, 16) | 1) * 16; }

// CPUs with AVX-512 mostly have twice the L2 of those without, or more.
inline int64_t scaled_to_l2(Isa isa, int64_t size) { return isa == Isa::kAvx512 ? 2 * size : size; }

// Floats a tile may read or write past the end of a line.
constexpr int64_t kLineSlack = kMaxTileVectors * kMaxLanes;

// A block of output rows of one phase, as a line.
struct PhasePlan {
  AxisPhase h, w;
  int64_t first_column;              // input column at the start of each packed row; may be negative
  int64_t first_row;                 // input row of slot 0 for output row 0; may be negative
  int64_t pitch;                     // floats from one packed row to the next
  int64_t slots_per_tap;             // packed rows from one vertical tap to the next
  int64_t slots;                     // packed rows per channel
  int64_t plane;                     // floats per packed channel
  int64_t channel_block;             // input channels packed at once
  std::vector<int64_t> tap_offsets;  // in bytes
  int64_t weights;                   // where this phase's packed weights start

  int64_t tap_count() const { return int64_t(h.tap_count) * w.tap_count; }
  int64_t line(int64_t rows) const { return (rows - 1) * pitch + w.out_count; }
};

struct ChannelTile {
  int64_t first;  // within the group
  int count;
};

struct PackedPlan {
  Isa isa;
  int64_t group_in, group_out;
  int64_t rows;                   // output rows of a phase per block
  std::vector<PhasePlan> phases;  // [residue_h][residue_w], those with outputs
  int64_t phases_w;
  std::vector<int64_t> first_block;  // of each residue_h; last entry is the number of blocks per sample
  std::vector<ChannelTile> tiles;    // of one group
  int64_t tiles_per_item, items_per_block;
  int64_t weights_floats, x_floats, sums_stride, sums_floats;  // the last three per thread

  PackedPlan(const ConvTransposeLayer& p, Isa for_isa, int64_t samples, int64_t num_threads);

 private:
  PhasePlan plan_phase(const ConvTransposeLayer& p, int64_t residue_h, int64_t residue_w) const;
  void cut_channels(int64_t most);
  void cut_rows(const ConvTransposeLayer& p, int64_t samples, int64_t num_threads);
};

// Tiles of `most` channels; a remainder of one or two shares with its neighbour, because narrow tiles are slow.
inline void PackedPlan::cut_channels(int64_t most) {
  int64_t first = 0;
  while (first < group_out) {
    const int64_t left = group_out - first;
    const int64_t count = left == most + 1 || left == most + 2 ? ceil_div(left, 2) : std::min(left, most);
    tiles.push_back({first, int(count)});
    first += count;
  }
}

inline PhasePlan PackedPlan::plan_phase(const ConvTransposeLayer& p, int64_t residue_h, int64_t residue_w) const {
  PhasePlan phase;
  phase.h = phase_h(p, residue_h);
  phase.w = phase_w(p, residue_w);
  phase.weights = 0;
  const AxisPhase &h = phase.h, &w = phase.w;
  if (phase.tap_count() == 0) {
    phase.first_column = phase.first_row = phase.slots_per_tap = phase.slots = phase.plane = 0;
    phase.pitch = w.out_count;
    phase.channel_block = group_in;
    return phase;
  }
  const int64_t reach_w = int64_t(w.tap_count - 1) * w.offset_step;
  phase.first_column = w.offset_first - reach_w;
  phase.first_row = h.offset_first - int64_t(h.tap_count - 1) * h.offset_step;
  // The zeros after one row may serve as the zeros before the next.
  const int64_t shared_zeros =
      std::max({w.out_count, p.in_w - phase.first_column, w.out_count + int64_t(w.offset_first)});
  phase.pitch = std::min(w.out_count + reach_w, shared_zeros);
  phase.slots_per_tap = std::min<int64_t>(h.offset_step, rows);
  phase.slots = rows + (h.tap_count - 1) * phase.slots_per_tap;
  phase.plane = padded_plane(phase.slots * phase.pitch + reach_w + kLineSlack);
  for (int th = 0; th < h.tap_count; ++th)
    for (int tw = 0; tw < w.tap_count; ++tw)
      phase.tap_offsets.push_back(
          ((h.tap_count - 1 - th) * phase.slots_per_tap * phase.pitch + reach_w - int64_t(tw) * w.offset_step) *
          int64_t(sizeof(float)));
  // Packed planes stay in L2, a tile's weights in L1.
  constexpr int64_t kPlanesBytes = 128 << 10, kWeightsBytes = 16 << 10;
  const int64_t by_planes = scaled_to_l2(isa, kPlanesBytes) / (phase.plane * 4);
  const int64_t by_weights = kWeightsBytes / (phase.tap_count() * tiles[0].count * 4);
  const int64_t block = std::clamp<int64_t>(std::min(by_planes, by_weights), 1, group_in);
  phase.channel_block = ceil_div(group_in, ceil_div(group_in, block));
  return phase;
}

// Blocks of about 2048 pixels, or 4096 with a larger L2, fewer where threads would idle.
inline void PackedPlan::cut_rows(const ConvTransposeLayer& p, int64_t samples, int64_t num_threads) {
  constexpr int64_t kBlockPixels = 2048, kItemsPerThread = 4;
  const int64_t rows_h = ceil_div(p.out_h, p.stride_h), columns = ceil_div(p.out_w, p.stride_w);
  const int64_t residues = std::min(p.stride_h, p.out_h);
  const int64_t wanted = kItemsPerThread * num_threads;
  const int64_t outer = std::max<int64_t>(samples, 1) * p.groups * residues;
  rows = std::clamp<int64_t>(scaled_to_l2(isa, kBlockPixels) / columns, 1, rows_h);
  while (rows > 1 && outer * ceil_div(rows_h, rows) < wanted) rows = ceil_div(rows, 2);
  rows = ceil_div(rows_h, ceil_div(rows_h, rows));
  const int64_t num_tiles = int64_t(tiles.size());
  items_per_block = std::clamp<int64_t>(ceil_div(wanted, outer * ceil_div(rows_h, rows)), 1, num_tiles);
  if (outer * ceil_div(rows_h, rows) >= num_threads * 2) items_per_block = 1;
  tiles_per_item = ceil_div(num_tiles, items_per_block);
  items_per_block = ceil_div(num_tiles, tiles_per_item);
}

inline PackedPlan::PackedPlan(const ConvTransposeLayer& p, Isa for_isa, int64_t samples, int64_t num_threads)
    : isa(for_isa) {
  group_in = p.in_channels / p.groups;
  group_out = p.out_channels / p.groups;
  cut_channels(tiles_for(isa).max_channels);
  cut_rows(p, samples, num_threads);
  const int64_t phases_h = std::min(p.stride_h, p.out_h);
  phases_w = std::min(p.stride_w, p.out_w);
  weights_floats = x_floats = sums_stride = 0;
  first_block.push_back(0);
  for (int64_t residue_h = 0; residue_h < phases_h; ++residue_h) {
    for (int64_t residue_w = 0; residue_w < phases_w; ++residue_w) {
      PhasePlan phase = plan_phase(p, residue_h, residue_w);
      phase.weights = weights_floats;
      weights_floats += p.groups * phase.tap_count() * group_in * group_out;
      x_floats = std::max(x_floats, phase.plane * phase.channel_block);
      sums_stride = std::max(sums_stride, padded_plane(phase.line(rows) + kLineSlack));
      phases.push_back(phase);
    }
    first_block.push_back(first_block.back() + ceil_div(phases.back().h.out_count, rows));
  }
  int64_t most_channels = 0;
  for (size_t t = 0; t < tiles.size(); t += tiles_per_item) {
    const ChannelTile& last = tiles[std::min(tiles.size(), t + tiles_per_item) - 1];
    most_channels = std::max(most_channels, last.first + last.count - tiles[t].first);
  }
  sums_floats = sums_stride * most_channels;
}

}  // namespace cpu
}  // namespace tconv
