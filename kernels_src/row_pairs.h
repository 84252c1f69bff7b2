// Two output rows as one, for layers that would fill half of a tile's output channels: with stride one in rows, a pair
// of output rows is the channels of one row of another transposed convolution, and so is a pair of input rows,
//   out'[r][q * kPairOut + co] = out[co, 2r + q],   x'[s][p * ci_count + ci] = x[ci, 2s + p - before],
//   w'[t][p, ci][q, co] = w[ci, co, 2 (t - padding') + q - p + padding + before], or zero beyond the kernel.
// K rows of taps for one row of outputs become K + 1 for two, where `before` (0 or 1) suits the padding. Absent taps
// are multiplied as zeros, of which infinity makes NaN: the containers' guard sees it, in 16 bits that of
// finite_inputs.cuh. All of it, and every block between #ifdef TCONV_PAIRS_ROWS and #endif, is only in solutions whose
// reference has such a layer (generator/calls.py).
#pragma once

#include "layer.h"

namespace tconv {

struct RowPairs {
  int out, in;            // channels from one row of a pair to the other, of outputs and inputs; out 0: no pairs
  int channels;           // of the layer's outputs, `out` at most
  int before;             // rows of the first input pair above the image
  int out_rows, in_rows;  // of the layer
};

constexpr int kPairOut = 32;  // half a tile's output channels

inline bool pairs_rows(const ConvTransposeLayer& p) {
  return p.groups == 1 && p.out_channels <= kPairOut && p.in_channels % 8 == 0 && p.kernel_h > 1 && p.stride_h == 1 &&
         p.stride_w == 1 && p.dilation_h == 1 && p.padding_h < p.kernel_h && p.out_h > 1 && p.in_h > 0;
}

// The layer of pairs, and how it follows from the other. Its weights are dense.
struct RowPairsLayer {
  ConvTransposeLayer layer;
  RowPairs pairs;

  explicit RowPairsLayer(const ConvTransposeLayer& p) : layer(p), pairs{} {
    const auto taps_of = [&](int64_t shift) { return (p.kernel_h - shift) / 2 + (shift + 1) / 2 + 1; };
    const int64_t before = taps_of(p.padding_h + 1) < taps_of(p.padding_h) ? 1 : 0, shift = p.padding_h + before;
    pairs.out = kPairOut, pairs.in = static_cast<int>(p.in_channels), pairs.channels = static_cast<int>(p.out_channels);
    pairs.before = static_cast<int>(before);
    pairs.out_rows = static_cast<int>(p.out_h), pairs.in_rows = static_cast<int>(p.in_h);
    layer.in_channels = 2 * p.in_channels, layer.out_channels = 2 * kPairOut;
    layer.in_h = (p.in_h + before + 1) / 2, layer.out_h = (p.out_h + 1) / 2;
    layer.kernel_h = taps_of(shift), layer.padding_h = (shift + 1) / 2;
    layer.x_stride_h = 2 * p.x_stride_h;
  }

  int64_t weights() const { return layer.in_channels * layer.out_channels * layer.kernel_h * layer.kernel_w; }
};

}  // namespace tconv
