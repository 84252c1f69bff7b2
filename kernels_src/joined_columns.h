// The columns of a stride as channels, for layers whose columns lie over two apart: a store would reach every third
// column or fewer. What lies at one input column, `stride` outputs next to each other, is the channels of one column of
// another transposed convolution, of stride one in columns,
//   out'[co * kSlots + r][q] = out[co, q * stride + r - crop],   w'[ci][co * kSlots + r][t] = w[ci, co, t * stride + r]
// with padding / stride for its padding and padding % stride for crop. The kernel is a whole number of strides wide, so
// that all columns have the same number of taps. Slots beyond the stride are weights of zero, and not stored. All of
// it, and every block between #ifdef TCONV_JOINS_COLUMNS and #endif, is only in solutions whose reference has such a
// layer (generator/calls.py), which have the interleaved kernel, too.
#pragma once

#include "layer.h"

namespace tconv {

struct JoinedColumns {
  int slots;  // of an output channel: 4 or 8; 0: columns are not joined
  int stride, crop;
  int width;  // of them are stored at once: 4, 2 or 1, all of which exist or none does

  TCONV_HD int slot_bits() const { return slots == 8 ? 3 : slots == 4 ? 2 : 0; }
};

constexpr int kMostJoinedColumns = 8;

inline bool joins_columns(const ConvTransposeLayer& p) {
  return p.stride_w > 2 && p.stride_w <= kMostJoinedColumns && p.kernel_w > 0 && p.kernel_w % p.stride_w == 0 &&
         p.dilation_w == 1 && p.out_w > 0;
}

inline JoinedColumns joined_columns(const ConvTransposeLayer& p) {
  const int stride = static_cast<int>(p.stride_w), crop = static_cast<int>(p.padding_w % stride);
  const int64_t places = p.out_w | stride | crop;
  return {stride > 4 ? 8 : 4, stride, crop, places % 4 == 0 ? 4 : places % 2 == 0 ? 2 : 1};
}

// The layer of joined columns; `p` itself where they are not joined.
inline ConvTransposeLayer layer_of(const ConvTransposeLayer& p, const JoinedColumns& joined) {
  ConvTransposeLayer layer = p;
  if (joined.slots == 0) return layer;
  layer.out_channels = p.out_channels * joined.slots;
  layer.stride_w = 1;
  layer.kernel_w = p.kernel_w / joined.stride;
  layer.padding_w = p.padding_w / joined.stride;
  layer.out_w = (p.out_w - 1 + joined.crop) / joined.stride + 1;
  return layer;
}

}  // namespace tconv
