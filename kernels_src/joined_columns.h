// The columns of a stride as channels: of layers whose columns lie over two apart, where a store would reach every
// third column or fewer, and of those of two apart with half a tile's output channels at most. What lies at one input
// column, `stride` outputs next to each other, is the channels of one column of another transposed convolution, of
// stride one in columns, with (padding + lead) / stride for its padding:
//   out'[co * kSlots + r][q] = out[co, q * stride + r - crop], where crop is (padding + lead) % stride,
//   w'[ci][co * kSlots + r][t] = w[ci, co, t * stride + r - lead]
// (in 16 bits of two slots in another order: JoinedColumns::apart).
// Slots beyond the stride are weights of zero, and not stored. Where the kernel is no whole number of strides wide,
// some columns have fewer taps than others, and weights of zero in their place. That is done for two columns alone: of
// more the zeros take longer than the stores. Infinity times such a zero is NaN where exact arithmetic has none: it
// raises the guard, in 16 bits that of finite_inputs.cuh. All of it, and every block between #ifdef TCONV_JOINS_COLUMNS
// and #endif, is only in solutions whose reference has such a layer (generator/calls.py).
#pragma once

#include "layer.h"

namespace tconv {

struct JoinedColumns {
  int slots;  // of an output channel: 2, 4 or 8; 0: columns are not joined
  int stride, crop, lead;
  int width;  // of them are stored at once: 4, 2 or 1, all of which exist or none does
  int apart;  // the two slots of a channel are eight rows of a tile apart, which are one thread's; else next to each
              // other

  TCONV_HD int slot_bits() const { return slots == 8 ? 3 : slots == 4 ? 2 : slots == 2 ? 1 : 0; }

  // Of a row of the tiles; columns are joined or not.
  TCONV_HD int channel_of(int row) const { return apart ? row / 16 * 8 + row % 8 : row >> slot_bits(); }
  TCONV_HD int slot_of(int row) const { return apart ? row / 8 % 2 : row - (row >> slot_bits() << slot_bits()); }

  // Of all groups, each of so many rows that are not empty; of an empty row one that is there.
  TCONV_HD int channel_of_all(int group, int row, int rows) const {
    const int channels = rows >> slot_bits(), channel = channel_of(row);
    return group * channels + (channel < channels ? channel : channels - 1);
  }
};

constexpr int kMostJoinedColumns = 8;
constexpr int kMostPairedChannels = 32;  // half a tile's

inline bool joins_columns(const ConvTransposeLayer& p) {
  if (p.stride_w < 2 || p.stride_w > kMostJoinedColumns || p.dilation_w != 1 || p.kernel_w < 1 || p.out_w < 1)
    return false;
  const bool whole = p.kernel_w % p.stride_w == 0;
  return p.stride_w > 2 ? whole : p.out_channels / p.groups <= kMostPairedChannels;
}

inline JoinedColumns joined_columns(const ConvTransposeLayer& p, bool sixteen_bit) {
  const int stride = static_cast<int>(p.stride_w);
  // Nothing is cropped, and columns lie aligned, where that takes no more taps.
  const int past = static_cast<int>(p.padding_w % stride), lead = past == 0 ? 0 : stride - past;
  const bool free = p.kernel_w % stride != 0 && p.kernel_w % stride + lead <= stride;
  const int crop = free ? 0 : past;
  const int64_t places = p.out_w | stride | crop;
  const int slots = stride > 4 ? 8 : stride > 2 ? 4 : 2;
  const int width = places % 4 == 0 ? 4 : places % 2 == 0 ? 2 : 1;
  return {slots, stride, crop, free ? lead : 0, width, sixteen_bit && slots == 2};
}

// Have some columns weights of zero for taps?
inline bool joins_zeros(const ConvTransposeLayer& p, const JoinedColumns& joined) {
  return joined.slots > 0 && p.kernel_w % joined.stride != 0;
}

// The layer of joined columns; `p` itself where they are not joined.
inline ConvTransposeLayer layer_of(const ConvTransposeLayer& p, const JoinedColumns& joined) {
  ConvTransposeLayer layer = p;
  if (joined.slots == 0) return layer;
  layer.out_channels = p.out_channels * joined.slots;
  layer.stride_w = 1;
  layer.kernel_w = (p.kernel_w + joined.lead + joined.stride - 1) / joined.stride;
  layer.padding_w = (p.padding_w + joined.lead) / joined.stride;
  layer.out_w = (p.out_w - 1 + joined.crop) / joined.stride + 1;
  return layer;
}

}  // namespace tconv
