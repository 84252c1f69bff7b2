// How x and g lie in the workspace for the weight gradient on tensor cores, and what multiplies what. Plain C++.
//
//   dw[tap][ci][co] = sum over pixels of  x[pixel][ci] * plane[pixel shifted by the tap][co]      (sliding_layer.h)
//
// Both are read with pixels as the reduction. They are packed once a call, as the images that lie in shared memory
// later: a *segment* is kSegment neighbouring pixels of a row (for planes with the columns that taps reach beyond
// them), a pixel being 64 channels of 16 bits, 128 bytes in the 128-byte swizzle (16-byte chunk c of pixel p at c XOR p
// mod 8). A tap is then the planes' segment of another row, read from another pixel on. A *strip* is a column of
// segments of one sample; pixels beyond the image are zeros. Of images much narrower than a segment, the same row of
// several lies in one, `pitch` pixels from one image's first to the next one's: a tap of one image ends before the next
// begins. What is called a sample here and in the kernels is then so many of the batch.
//
//   x:      [sample][group][block of in channels][strip][row][piece][segment pixel][64 channels]
//   planes: [sample][group][block of planes' channels][strip][plane row][piece][segment pixel][64 channels]
//
// Pieces: one, or three bf16 numbers whose sum an fp32 number is (strict fp32). Where the batch is packed in several
// goes, `sample` counts within one of them.
#pragma once

#include <algorithm>

#include "../gradient_call.h"
#include "conv_transpose_portable_plan.h"
#include "sliding_layer.h"

namespace tconv {
namespace cuda {

struct WeightGradientConfig {
  static constexpr int kBlockChannels = 64;  // of either operand
  static constexpr int kPixelBytes = 128;
  static constexpr int kMaxSegment = 64;
  static constexpr int kStepPixels = 16;  // of a tensor-core product
  static constexpr int kTileValues = kBlockChannels * kBlockChannels;
  // Of x and planes together, beyond which the batch is cut: more where that is not for padded channels. Few goes have
  // few ends, at which the device runs empty.
  static constexpr int64_t kPackedBytes = int64_t{256} << 20, kMostPackedBytes = int64_t{640} << 20;
  static constexpr int kRunRows = 32;  // of a strip, that one block takes at once
  // After which tensor cores' sums join fp32 sums in memory: 256 products at most. Of values of one sign each product
  // loses about 2^-24 of the sum so far.
  static constexpr int kPromoteRows = 64;
};

struct PackedOperand {
  int channels_per_group, blocks;  // of 64 channels
  int rows, segment_pixels;        // rows of a strip; pixels of a segment, a multiple of 8
  int64_t segment_bytes;           // all pieces

  TCONV_HD int64_t sample_segments(int groups, int strips) const {
    return static_cast<int64_t>(groups) * blocks * strips * rows;
  }
};

struct WeightGradientLayout {
  int groups, strips, segment;  // segment: pixels of x's
  int abreast, pitch;           // images side by side in a segment; pixels from one to the next
  int runs;                     // of rows, in a strip
  int pieces;
  int taps_h, taps_w, step_h, step_w;
  PackedOperand x, planes;

  TCONV_HD int taps() const { return taps_h * taps_w; }
#ifdef TCONV_WALKS_DEPTH
  // Of a volume's images. x lies there once where its depth taps, x_taps of them, are whole blocks: a tap is another
  // image, so many before, and those beyond x are zeros. Else x_taps is 1, and taps are channels.
  int slices, x_taps, tap_slices;
  bool all_rows;  // of taps, in each warpgroup (weight_gradient_all_rows.cuh)
  bool narrow;    // planes' pixels are of 32 channels, in the 64-byte swizzle: chunk c of pixel p at c XOR p / 2 mod 4

  TCONV_HD int x_blocks() const { return x.blocks * x_taps; }
  TCONV_HD int pairs() const { return groups * x_blocks() * planes.blocks; }  // of channel blocks

  TCONV_HD int x_image(int image, int tap) const {
    const int first = image / slices * slices, slice = image - first - tap * tap_slices;
    return first + (slice < 0 ? slice + slices : slice);
  }
#else
  TCONV_HD int pairs() const { return groups * x.blocks * planes.blocks; }  // of channel blocks
#endif
  TCONV_HD int64_t samples(int64_t images) const { return (images + abreast - 1) / abreast; }
};

// How many images the widest segment holds side by side.
inline int images_abreast([[maybe_unused]] const ConvTransposeLayer& p, [[maybe_unused]] const SlidingLayer& sliding) {
#ifdef TCONV_WALKS_DEPTH
  return 1;  // images are slices, each found by itself
#else
  const int64_t room = WeightGradientConfig::kMaxSegment - p.in_w;
  if (room < 0) return 1;
  return static_cast<int>(std::max<int64_t>(1, std::min(p.batch, 1 + room / sliding.w.plane_size)));
#endif
}

// The widest segment among those that leave the fewest pixels beyond the image.
inline int choose_segment(int64_t width) {
  int best = 0;
  for (int segment = WeightGradientConfig::kMaxSegment; segment >= WeightGradientConfig::kStepPixels;
       segment -= WeightGradientConfig::kStepPixels)
    if (best == 0 || round_up(width, segment) < round_up(width, best)) best = segment;
  return best;
}

#ifdef TCONV_WALKS_DEPTH
// may_narrow: planes of few channels may be narrow.
inline WeightGradientLayout weight_gradient_layout(const ConvTransposeLayer& p, const SlidingLayer& sliding, int pieces,
                                                   bool may_narrow = false) {
#else
inline WeightGradientLayout weight_gradient_layout(const ConvTransposeLayer& p, const SlidingLayer& sliding,
                                                   int pieces) {
#endif
  using Config = WeightGradientConfig;
  WeightGradientLayout layout;
  layout.groups = static_cast<int>(p.groups);
  constexpr int kNoPitch = 1 << 30;  // beyond any column
  layout.abreast = images_abreast(p, sliding);
  layout.pitch = layout.abreast > 1 ? static_cast<int>(sliding.w.plane_size) : kNoPitch;
  const int64_t width = layout.abreast > 1 ? int64_t{layout.abreast - 1} * layout.pitch + p.in_w : p.in_w;
  layout.segment = choose_segment(width);
  layout.strips = static_cast<int>(ceil_div(width, layout.segment));
  layout.runs = static_cast<int>(ceil_div(p.in_h, Config::kRunRows));
  layout.pieces = pieces;
  layout.taps_h = static_cast<int>(sliding.h.taps), layout.taps_w = static_cast<int>(sliding.w.taps);
  layout.step_h = static_cast<int>(sliding.h.step), layout.step_w = static_cast<int>(sliding.w.step);
  const auto operand = [&](int64_t channels, int64_t rows, int64_t pixels) {
    PackedOperand packed;
    packed.channels_per_group = static_cast<int>(channels);
    packed.blocks = static_cast<int>(ceil_div(channels, Config::kBlockChannels));
    packed.rows = static_cast<int>(rows);
    packed.segment_pixels = static_cast<int>(round_up(pixels, 8));
    packed.segment_bytes = int64_t{packed.segment_pixels} * Config::kPixelBytes * pieces;
    return packed;
  };
#ifdef TCONV_WALKS_DEPTH
  const int64_t channels = p.in_channels / p.groups, of_tap = channels / sliding.d.taps;
  layout.slices = static_cast<int>(sliding.d.plane_size), layout.tap_slices = static_cast<int>(sliding.d.step);
  const bool whole =
      ceil_div(of_tap, Config::kBlockChannels) * sliding.d.taps == ceil_div(channels, Config::kBlockChannels);
  layout.x_taps = whole ? static_cast<int>(sliding.d.taps) : 1;
  layout.x = operand(channels / layout.x_taps, p.in_h, layout.segment);
#else
  layout.x = operand(p.in_channels / p.groups, p.in_h, layout.segment);
#endif
  layout.planes =
      operand(sliding.channels_per_group, sliding.h.plane_size, layout.segment + (sliding.w.taps - 1) * sliding.w.step);
#ifdef TCONV_WALKS_DEPTH
  layout.narrow = may_narrow && sliding.channels_per_group <= WeightGradientConfig::kBlockChannels / 2;
  layout.all_rows = layout.narrow && layout.taps_h == 3 && layout.taps_w == 3;
  if (layout.narrow) layout.planes.segment_bytes /= 2;
#endif
  return layout;
}

// Are places and counts of this layer 32-bit numbers, as the kernels have them?
inline bool weight_gradient_can_index(const ConvTransposeLayer& p, const SlidingLayer& sliding) {
  constexpr int64_t kLimit = int64_t{1} << 30;
  const int64_t small[] = {p.in_h,
                           p.in_w,
                           p.out_h,
                           p.out_w,
                           p.in_channels,
                           p.groups * sliding.channels_per_group,
                           p.batch,
                           p.padding_h,
                           p.padding_w,
                           p.stride_h,
                           p.stride_w,
                           sliding.h.plane_size,
                           sliding.w.plane_size,
                           p.dilation_h * p.kernel_h,
                           p.dilation_w * p.kernel_w};
  for (const int64_t value : small)
    if (value > kLimit) return false;
  const WeightGradientLayout layout = weight_gradient_layout(p, sliding, 1);
  const double segments = static_cast<double>(layout.x.sample_segments(layout.groups, layout.strips)) +
                          static_cast<double>(layout.planes.sample_segments(layout.groups, layout.strips));
  return segments * p.batch < kLimit && static_cast<double>(layout.pairs()) * layout.taps() < 65536;
}

}  // namespace cuda
}  // namespace tconv
