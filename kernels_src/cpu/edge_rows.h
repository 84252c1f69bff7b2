// Tiles of a line without the taps that read nothing but zeros there: at an image's upper and lower edge whole rows of
// taps do, of a low image under a high kernel a tenth of all products and more.
#pragma once

#include "conv_transpose_plan.h"

namespace tconv {
namespace cpu {

// Rows of taps, in the order of tap_offsets.
struct TapRows {
  int64_t first, last;

  bool operator==(const TapRows& other) const { return first == other.first && last == other.last; }
};

// Those that output rows [first_row, last_row] of a phase read the image through.
inline TapRows tap_rows_of(const PhasePlan& phase, int64_t in_h, int64_t first_row, int64_t last_row) {
  const int64_t count = phase.h.tap_count, step = phase.h.offset_step;
  TapRows found{count, 0};
  for (int64_t th = 0; th < count; ++th) {
    const int64_t shift = phase.first_row + (count - 1 - th) * step;  // from output row to input row
    if (last_row + shift < 0 || first_row + shift >= in_h) continue;
    found.first = std::min(found.first, th);
    found.last = th + 1;
  }
  return found.first < found.last ? found : TapRows{0, 0};
}

// A line of `rows` output rows from `first_row` on: `function`, whose tiles have `pixels` pixels, over all its tiles.
inline void run_line(const ConvTransposeLayer& p, const PhasePlan& phase, int64_t first_row, int64_t rows,
                     TileFunction function, int channels, int64_t pixels, const TileArgs& line) {
  // Without some taps each input channel is a call of its own, which takes the sums from memory and puts them back.
  constexpr int64_t kTapsWorthACall = 4;
  const int64_t num_tiles = ceil_div(phase.line(rows), pixels), taps_w = phase.w.tap_count;
  if (line.in_channels == 0) return function(line, num_tiles);  // zeros
  const TapRows all{0, phase.h.tap_count};
  const auto tap_rows = [&](int64_t tile) {
    const int64_t first = tile * pixels / phase.pitch, last = ((tile + 1) * pixels - 1) / phase.pitch;
    const TapRows read =
        tap_rows_of(phase, p.in_h, first_row + std::min(first, rows - 1), first_row + std::min(last, rows - 1));
    return (all.last - (read.last - read.first)) * taps_w > kTapsWorthACall ? read : all;
  };
  for (int64_t tile = 0; tile < num_tiles;) {
    const TapRows read = tap_rows(tile);
    int64_t alike = 1;
    while (tile + alike < num_tiles && tap_rows(tile + alike) == read) ++alike;
    TileArgs args = line;
    args.x += tile * pixels;
    args.sums += tile * pixels;
    tile += alike;
    if (read == all) {
      function(args, alike);
      continue;
    }
    const int64_t skipped = read.first * taps_w;
    args.tap_offsets += skipped;
    args.tap_count = (read.last - read.first) * taps_w;
    args.weights += skipped * channels;
    args.in_channels = 1;
    for (int64_t ci = 0; ci < line.in_channels; ++ci) {
      function(args, alike);
      args.accumulate = true;
      args.x += line.x_plane;
      args.weights += line.tap_count * channels;
    }
  }
}

}  // namespace cpu
}  // namespace tconv
