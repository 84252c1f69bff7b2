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
constexpr int kPairs = kN / 2;             // of neighbouring pixels; an odd multiple of 4: rows spread over the banks
constexpr int kTilePixels = kSegments * kN;
constexpr int kChunkChannels = 16;         // wgmma's K
constexpr int kPixelBytes = 2 * kChunkChannels;
constexpr int kSwizzleBytes = 256;         // what the 32-byte swizzle repeats after
constexpr int kStages = 2;                 // of the ring of chunks
constexpr int kProducerWarps = 3;  // and one that agrees with other blocks on statistics
constexpr int kThreads = 128 * kSegments + 32 * (kProducerWarps + 1);

// Outputs wait in shared memory as the upper 24 bits of fp32 numbers: words of two pixels' upper halves, for each channel, and
// words of the third bytes of two pixels in two channels, kPartner apart.
constexpr int kPartner = 8;
constexpr int kHighBytes = kSegments * kChannels * kPairs * 4;
constexpr int kThirdBytes = kHighBytes / 2;
constexpr int kMomentsBytes = kSegments * kChannels * 16;
constexpr int kAffineBytes = kChannels * 8;
constexpr int kParameterBytes = 3 * kChannels * 4;
constexpr int kNumBarriers = 1 + 2 * kStages + 2;
constexpr int kFixedBytes = kHighBytes + kThirdBytes + kMomentsBytes + kAffineBytes + kParameterBytes + 8 * kNumBarriers;

// Bytes that depend on the number of a sample's blocks: outputs of each.
TCONV_HD constexpr int counts_bytes(int blocks) { return (blocks + 1) / 2 * 2 * 4; }

struct Plan {
  bool usable;
  const char* reason;  // why not usable
  int in_channels, out_channels, num_chunks;
  int taps_h, taps_w;
  int first_pixel;               // of the window: where the first tap of output 0 reads
  int tap_step_h, tap_step_w;    // in pixels of the line
  int row_offset, col_offset;    // of the input: the line's row 0, column 0 of strip 0
  int num_strips, tile_w, pitch, num_tiles;  // tiles of a strip
  int window_quads;  // of pixels
  int reach_rows;    // of a window, beyond its tile's
  int stage_bytes;
  int weight_bytes, smem_bytes;

  // Blocks that hold a sample. They must all run at once.
  TCONV_HD int blocks_per_sample() const { return num_strips * num_tiles; }
};

}  // namespace held
}  // namespace tconv
