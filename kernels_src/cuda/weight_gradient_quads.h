// Which taps a warpgroup of the Hopper weight gradient has: a *quad*, up to four neighbours in a row of the kernel,
// that one wgmma multiplies. Blocks have up to kConsumers quads each, a warpgroup each, or one quad and different rows
// of pixels. Plain C++.
#pragma once

#include "../common.h"

namespace tconv {
namespace cuda {

struct WeightGradientHopperConfig {
  // Warpgroups that multiply. Of three, a thread would have too few registers at launch for one product's accumulators.
  static constexpr int kConsumers = 2;
  static constexpr int kMaxTaps = 4;  // of a quad
  static constexpr int kThreads =
      128 * (kConsumers + 1);  // a warpgroup for the one thread that copies: registers go by warpgroups
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kConsumerRegisters = 224,
                       kProducerRegisters = 40;  // of a thread; kMaxTaps * 32 are accumulators
  static_assert(kConsumers * kConsumerRegisters + kProducerRegisters <= (kConsumers + 1) * kLaunchRegisters,
                "what some take others must give, or setmaxnreg waits for ever");
  static constexpr int kMaxGroups = 32;   // of quads
  static constexpr int kMaxSlots = 24;    // of a ring of segments
  static constexpr int kTargetSlots = 8;  // ahead of what is being multiplied
};

struct Quad {
  int tap_row, first_column, taps;
};

// Quads are numbered down the kernel's rows, then along them: blocks then share rows of the planes.
struct QuadTable {
  int taps_h, taps_w, columns;  // columns: quads in a row of the kernel

  TCONV_HD QuadTable(int h, int w)
      : taps_h(h),
        taps_w(w),
        columns((w + WeightGradientHopperConfig::kMaxTaps - 1) / WeightGradientHopperConfig::kMaxTaps) {}

  TCONV_HD int size() const { return taps_h * columns; }
  TCONV_HD int num_groups() const {
    return (size() + WeightGradientHopperConfig::kConsumers - 1) / WeightGradientHopperConfig::kConsumers;
  }
  // First quad of a group; groups are as even as can be.
  TCONV_HD int group_begin(int group) const { return group * size() / num_groups(); }

  TCONV_HD Quad operator[](int index) const {
    const int column = index / taps_h;
    Quad quad;
    quad.tap_row = index - column * taps_h;
    quad.first_column = column * taps_w / columns;
    quad.taps = (column + 1) * taps_w / columns - quad.first_column;
    return quad;
  }

  // The quad that has a tap.
  TCONV_HD int index_of(int tap_row, int tap_column) const {
    int column = 0;
    while ((column + 1) * taps_w / columns <= tap_column) ++column;
    return column * taps_h + tap_row;
  }
};

// The quads of a group: rows of the kernel from first_row on, `row_span` further at most; `ways` warpgroups share a
// quad.
struct QuadGroup {
  int begin, count, ways, first_row, row_span, taps;

  TCONV_HD QuadGroup(const QuadTable& table, int group) {
    begin = table.group_begin(group);
    count = table.group_begin(group + 1) - begin;
    ways = WeightGradientHopperConfig::kConsumers / count;
    taps = 0;
    int last = 0;
    first_row = table.taps_h;
    for (int i = begin; i < begin + count; ++i) {
      const Quad quad = table[i];
      first_row = quad.tap_row < first_row ? quad.tap_row : first_row;
      last = quad.tap_row > last ? quad.tap_row : last;
      taps += quad.taps;
    }
    row_span = last - first_row;
  }
#ifdef TCONV_WALKS_DEPTH

  // Of all quads as one, which warpgroups share by rows of pixels.
  TCONV_HD static QuadGroup of_all(const QuadTable& table) {
    QuadGroup group(table, 0);
    group.begin = 0, group.count = 1, group.ways = WeightGradientHopperConfig::kConsumers;
    group.first_row = 0, group.row_span = table.taps_h - 1, group.taps = table.taps_h * table.taps_w;
    return group;
  }
#endif
};

}  // namespace cuda
}  // namespace tconv
