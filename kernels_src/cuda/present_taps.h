// Which taps of x's gradient have weights, where planes are channels (sliding_layer.h) and each class has whole blocks
// of them: a class whose taps end before the longest one's lacks the last tap of an axis, of all its blocks. Those are
// not multiplied. Plain C++.
#pragma once

#include <cstdint>

#include "sliding_layer.h"

namespace tconv {
namespace cuda {

struct PresentTaps {
  static constexpr int kBlockChannels = 64, kMostBlocks = 32;
  // Blocks of a group that have a tap, of all depth taps one after the other; 0: all have, and what they lack is
  // multiplied as zeros.
  int count = 0;
  uint32_t short_rows = 0, short_columns = 0;  // bit n: the nth of them lacks the last row (column) of taps
  uint8_t places[kMostBlocks] = {};            // of the nth: depth tap * blocks of the planes + block

  PresentTaps() = default;
  PresentTaps(const SlidingLayer& sliding, int64_t out_channels_per_group, int64_t kernel_d, int64_t kernel_h,
              int64_t kernel_w) {
    const int64_t of_class = out_channels_per_group / kBlockChannels;
    const int64_t blocks = sliding.channels_per_group / kBlockChannels;
#ifdef TCONV_WALKS_DEPTH
    const SlidingAxis depth = sliding.d;
#else
    const SlidingAxis depth = {1, 1, 1, 1, 1};
#endif
    if (!sliding.absent_taps || out_channels_per_group % kBlockChannels != 0 || blocks * depth.taps > kMostBlocks)
      return;
    const auto lacks = [](const SlidingAxis& axis, int64_t kernel, int64_t of_axis) {
      return of_axis + (axis.taps - 1) * axis.kernel_step >= kernel;
    };
    for (int64_t tap = 0; tap < depth.taps; ++tap)
      for (int64_t block = 0; block < blocks; ++block) {
        const int64_t classes = block / of_class, class_w = classes % sliding.w.classes;
        const int64_t class_h = classes / sliding.w.classes % sliding.h.classes;
        const int64_t class_d = classes / (sliding.w.classes * sliding.h.classes);
        if (tap == depth.taps - 1 && lacks(depth, kernel_d, class_d)) continue;
        short_rows |= uint32_t{lacks(sliding.h, kernel_h, class_h)} << count;
        short_columns |= uint32_t{lacks(sliding.w, kernel_w, class_w)} << count;
        places[count++] = static_cast<uint8_t>(tap * blocks + block);
      }
  }

  TCONV_HD bool any_short() const { return (short_rows | short_columns) != 0; }
  TCONV_HD int lacks_row(int block) const { return static_cast<int>(short_rows >> block & 1); }
  TCONV_HD int lacks_column(int block) const { return static_cast<int>(short_columns >> block & 1); }
};

}  // namespace cuda
}  // namespace tconv
