// What the kernel that holds a sample's outputs until they are normalised (conv_group_norm_held.cuh) and its launcher
// read: its shape, and the plan of a call (conv_group_norm_held_plan.h makes it). Plain C++.
//
// Terms as in conv_transpose_hopper_plan.h: strip, line, pitch, tile, segment, window. A *chunk* is 16 input channels
// of a window: 32 bytes a pixel, pixel after pixel.
#pragma once

#include "conv_transpose_hopper_types.h"

namespace tconv {
namespace held {

constexpr int kChannels = hopper::kBlockOC;  // of outputs, at most: wgmma's M
constexpr int kSegments = 3;                 // a warpgroup of consumers each
constexpr int kN = 176;
constexpr int kPairs = kN / 2;  // of neighbouring pixels
constexpr int kTilePixels = kSegments * kN;
constexpr int kChunkChannels = 16;  // wgmma's K
constexpr int kPixelBytes = 2 * kChunkChannels;
constexpr int kSwizzleBytes = 256;                          // what the 32-byte swizzle repeats after
constexpr int kMinStages = 2, kMaxStages = 4;               // of the ring of chunks
constexpr int kMinWeightStages = 4, kMaxWeightStages = 12;  // of the ring of their weights, a row of taps each
constexpr int kTapBytes = kChannels * kPixelBytes;  // weights of a tap for a chunk: a row for each output channel
constexpr int kBatchQuads = 16;                     // that a producer warp loads at once, 16 channels of each
constexpr int kProducerWarps = 3;                   // and one that agrees with other blocks on statistics
constexpr int kThreads = 128 * kSegments + 32 * (kProducerWarps + 1);

// Outputs wait in shared memory as differences from a value of their row, a channel of a segment: those of 16-bit
// tensors in their type, others as the upper 24 bits of fp32 numbers. For each two channels, kPartner apart, there are
// for each pair of pixels two words, of the one and of the other, side by side, or three, which lie in three arrays.
constexpr int kPartner = 8;
constexpr int kRows = kChannels / 2;  // of a segment, of two channels
TCONV_HD constexpr int held_words(int value_bytes) { return value_bytes == 2 ? 2 : 3; }
TCONV_HD constexpr int pair_bytes(int value_bytes) { return value_bytes == 2 ? 8 : 4; }  // from one to the next
// An odd multiple of what four lanes store: rows of fragments spread over the banks.
TCONV_HD constexpr int row_bytes(int value_bytes) {
  return held_words(value_bytes) * kPairs * 4 | 4 * pair_bytes(value_bytes);
}
constexpr int kPaddingBytes = 16;  // at least, at a row's end
TCONV_HD constexpr int held_bytes(int value_bytes) { return kSegments * kRows * row_bytes(value_bytes); }
// Of a channel in a segment: number, mean, sum of squared deviations, and what is subtracted.
constexpr int kMomentBytes = 16;
constexpr int kMomentsBytes = kSegments * kChannels * kMomentBytes;
constexpr int kAffineBytes = kSegments * kRows * 16;  // of a row's two channels: scales, shifts
constexpr int kParameterBytes = 2 * kChannels * 4;    // scale and bias of each
constexpr int kPlaceBytes = 4 * 4;
constexpr int kRowClasses = 2;
// Where a segment's rounds of stores end, a word for each class of rows.
constexpr int kSplitsBytes = kSegments * kRowClasses * 4;
constexpr int kNumBarriers = 2 * kMaxWeightStages + 2 * kMaxStages + 2;
constexpr int kFixedBytes = hopper::round_up(
    kMomentsBytes + kAffineBytes + kParameterBytes + kPlaceBytes + kSplitsBytes + 8 * kNumBarriers, 16);
static_assert(row_bytes(4) - held_words(4) * kPairs * 4 >= kPaddingBytes &&
                  row_bytes(2) - held_words(2) * kPairs * 4 >= kPaddingBytes,
              "producers' place for what is no pixel of the window");
static_assert(32 * kProducerWarps <= kSegments * kRows, "a row for each lane");
static_assert(held_bytes(4) % kSwizzleBytes == 0 && held_bytes(2) % kSwizzleBytes == 0, "what follows is swizzled");

// Of where each quad of a window comes from, or goes to; with these and the number of outputs in each of a sample's
// blocks, all that lies before the outputs.
TCONV_HD constexpr int offsets_bytes(int window_quads) { return hopper::round_up(window_quads, kBatchQuads) * 4; }
TCONV_HD constexpr int tables_bytes(int blocks, int window_quads) {
  return hopper::round_up(kFixedBytes + 2 * offsets_bytes(window_quads) + blocks * 4, kSwizzleBytes);
}

struct Plan {
  bool usable;
  const char* reason;  // why not usable
  int in_channels, out_channels, num_chunks;
  int taps_h, taps_w;
  int first_pixel;                            // of the window: where the first tap of output 0 reads
  int tap_step_h, tap_step_w;                 // in pixels of the line
  int row_offset, col_offset;                 // of the input: the line's row 0, column 0 of strip 0
  bool whole_rows;                            // the input's rows are whole quads: strips begin at pairs of their pixels
  int num_strips, strip_w, pitch, num_tiles;  // tiles of a strip; the last strip has the columns that are left
  int window_pixels;
  int window_quads;  // that a window is loaded in, at most
  int held_bytes;
  int stage_bytes;
  int num_stages;
  int num_weight_stages, weight_stage_bytes, smem_bytes;

  // Blocks that hold a sample. They must all run at once.
  TCONV_HD int blocks_per_sample() const { return num_strips * num_tiles; }
  TCONV_HD int weight_rows() const { return num_chunks * taps_h; }
  // Columns of a strip: an even number, but for the last one's.
  TCONV_HD int columns(int strip, int out_w) const {
    return strip + 1 < num_strips ? strip_w : out_w - strip * strip_w;
  }
};

// The quads of input pixels that a block's window is loaded in: row by row of the line, and in whole quads of the
// input's where there are such. Of a row's first and last one a pair may lie outside of the row.
struct WindowQuads {
  int pitch, window_pixels;
  int first_pixel;  // of the line
  int lead;         // pixels of a row's first quad before the row
  int per_row, first, count;

  TCONV_HD WindowQuads(const Plan& plan, int strip, int tile)
      : pitch(plan.pitch),
        window_pixels(plan.window_pixels),
        first_pixel(tile * kTilePixels),
        lead(plan.whole_rows ? (strip * plan.strip_w + plan.col_offset) & (hopper::kVectorPixels - 1) : 0),
        per_row(hopper::round_up(lead + pitch, hopper::kVectorPixels) / hopper::kVectorPixels),
        first(of_pixel(first_pixel)),
        count(of_pixel(first_pixel + window_pixels - 1) + 1 - first) {}

  TCONV_HD int row(int quad) const { return (first + quad) / per_row; }  // of the line
  TCONV_HD int column(int quad) const { return (first + quad) % per_row * hopper::kVectorPixels - lead; }
  // Of the window.
  TCONV_HD int pixel(int quad) const { return row(quad) * pitch + column(quad) - first_pixel; }
  // Is the quad's first pair of pixels one of the window's, or its second one?
  TCONV_HD bool has_pair(int quad, int second) const {
    const int in_row = column(quad) + 2 * second, at = pixel(quad) + 2 * second;
    return quad < count && in_row >= 0 && in_row < pitch && at >= 0 && at < window_pixels;
  }

 private:
  TCONV_HD int of_pixel(int at) const { return at / pitch * per_row + (at % pitch + lead) / hopper::kVectorPixels; }
};

}  // namespace held
}  // namespace tconv
