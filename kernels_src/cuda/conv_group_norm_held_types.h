// What the kernel that holds a sample's outputs until they are normalised (conv_group_norm_held.cuh) and its launcher read: its
// shape, and the plan of a call (conv_group_norm_held_plan.h makes it). Plain C++.
//
// Terms as in conv_transpose_sm90_plan.h: strip, line, pitch, tile, segment, window. A *chunk* is 16 input channels of a window: 32
// bytes a pixel, pixel after pixel.
#pragma once

#include "conv_transpose_sm90_types.h"

namespace tconv {
namespace held {

constexpr int kChannels = sm90::kBlockOC;  // of outputs, at most: wgmma's M
constexpr int kSegments = 3;               // a warpgroup of consumers each
constexpr int kN = 184;
constexpr int kPairs = kN / 2;             // of neighbouring pixels
constexpr int kTilePixels = kSegments * kN;
constexpr int kChunkChannels = 16;         // wgmma's K
constexpr int kPixelBytes = 2 * kChunkChannels;
constexpr int kSwizzleBytes = 256;         // what the 32-byte swizzle repeats after
constexpr int kMinStages = 2, kMaxStages = 4;  // of the ring of chunks
constexpr int kMinWeightStages = 4, kMaxWeightStages = 8;  // of the ring of their weights, a row of taps each
constexpr int kTapBytes = kChannels * kPixelBytes;  // weights of a tap for a chunk: a row for each output channel
constexpr int kBatchQuads = 16;            // that a producer warp loads at once, 16 channels of each
constexpr int kProducerWarps = 3;  // and one that agrees with other blocks on statistics
constexpr int kThreads = 128 * kSegments + 32 * (kProducerWarps + 1);

// Outputs wait in shared memory as the upper 24 bits of fp32 numbers: for each two channels, kPartner apart, a word of upper halves
// for each pair of pixels in the one and in the other, and a word of the third bytes of all four.
constexpr int kPartner = 8;
constexpr int kRowBytes = 3 * kPairs * 4;  // of two channels
constexpr int kHeldBytes = kSegments * (kChannels / 2) * kRowBytes;
constexpr int kMomentsBytes = kSegments * kChannels * 16;
constexpr int kAffinePairBytes = 16;  // scales and shifts of two channels, kPartner apart
constexpr int kAffineBytes = kChannels / 2 * kAffinePairBytes;
constexpr int kParameterBytes = 3 * kChannels * 4;  // scale, bias and pivot of each
constexpr int kPlaceBytes = 4 * 4;
constexpr int kNumBarriers = 2 * kMaxWeightStages + 2 * kMaxStages + 2;
constexpr int kFixedBytes =
    sm90::round_up(kHeldBytes + kMomentsBytes + kAffineBytes + kParameterBytes + kPlaceBytes + 8 * kNumBarriers, kSwizzleBytes);

// Of the number of outputs in each of a sample's blocks; of where each quad of a window comes from.
TCONV_HD constexpr int counts_bytes(int blocks) { return blocks * 4; }
TCONV_HD constexpr int offsets_bytes(int window_quads) { return sm90::round_up(window_quads, kBatchQuads) * 4; }

struct Plan {
  bool usable;
  const char* reason;  // why not usable
  int in_channels, out_channels, num_chunks;
  int taps_h, taps_w;
  int first_pixel;               // of the window: where the first tap of output 0 reads
  int tap_step_h, tap_step_w;    // in pixels of the line
  int row_offset, col_offset;    // of the input: the line's row 0, column 0 of strip 0
  int num_strips, strip_w, pitch, num_tiles;  // tiles of a strip; the last strip has the columns that are left, more or fewer
  int window_quads;  // of pixels
  int reach_rows;    // of a window, beyond its tile's
  int stage_bytes;
  int num_stages;
  int num_weight_stages, weight_stage_bytes, smem_bytes;

  // Blocks that hold a sample. They must all run at once.
  TCONV_HD int blocks_per_sample() const { return num_strips * num_tiles; }
  TCONV_HD int weight_rows() const { return num_chunks * taps_h; }
  // Columns of a strip.
  TCONV_HD int columns(int strip, int out_w) const { return strip + 1 < num_strips ? strip_w : out_w - strip * strip_w; }
};

}  // namespace held
}  // namespace tconv
