// Every compile-time choice of the portable tensor-core kernel, for host and device alike, and the tap order
// that the weight transform writes and the kernel reads. Plain C++.
#pragma once

#include "../layer.h"

namespace tconv {
namespace cuda {

// What the operands are on their way into the tensor core. kTF32: fp32 tensors with TF32 allowed, whose 11-bit operands
// travel as fp16 numbers (fp16_containers.cuh). kStrictFP32: fp32 tensors, two TF32 numbers an operand.
enum class Numeric { kTF32, kStrictFP32, kFP16, kBF16 };

// One block computes BLOCK_OC output channels x BLOCK_PIX output pixels of one phase of one sample. Each warp
// owns all BLOCK_OC channels of its share of the pixels, in segments of 8 consecutive pixels (one mma column
// block). The reduction runs over BLOCK_IC input channels times the taps of a window; one step = one tap.
template <Numeric kNumericValue>
struct PortableConfig {
  static constexpr Numeric kNumeric = kNumericValue;
  static constexpr bool kStrict = kNumeric == Numeric::kStrictFP32;
  static constexpr bool kContainers = kNumeric == Numeric::kTF32;  // scaled, guarded
  static constexpr int kElementBytes = kStrict ? 4 : 2;            // of an operand in shared memory

  static constexpr int kNumWarps = 4;
  static constexpr int kNumThreads = 32 * kNumWarps;
  static constexpr int kMinBlocksPerSm = 2;  // caps registers at 65536 / (blocks * threads)
  static constexpr int BLOCK_OC = 64;
  static constexpr int kRowTiles = BLOCK_OC / 16;             // m16 tiles
  static constexpr int kSegmentsPerWarp = kStrict ? 4 : 8;    // n8 tiles; strict keeps two weight pieces in registers
  static constexpr int kSegmentPairs = kSegmentsPerWarp / 2;  // what one ldmatrix reads, half a pixel of each
  static constexpr int BLOCK_PIX = 8 * kSegmentsPerWarp * kNumWarps;
  static constexpr int PIXEL_BYTES = 64;                        // one pixel's channels in shared memory
  static constexpr int BLOCK_IC = PIXEL_BYTES / kElementBytes;  // 16 fp32 or 32 halves: two mma k-steps
  static constexpr int kChunks = PIXEL_BYTES / 16;              // 16-byte chunks of a pixel
  static constexpr int kChunkElements = 16 / kElementBytes;
  static constexpr int kStages = 4;                        // weight tiles in flight or in use
  static constexpr int kFillsInFlight = kStrict ? 2 : 1;   // chunks per thread and step loaded ahead of the products
  static constexpr int kLateFills = 4;                     // at once, those that too few steps could not take along
  static constexpr int kFirstFills = 64 / kChunkElements;  // at once, those of a tile's first window
  static constexpr int kFillPixels = 32;                   // pixels per fill: one per lane

  static constexpr int kWeightPieces = kStrict ? 2 : 1;  // strict: high and low part
  static constexpr int FRAGMENT_TILE_BYTES = 32 * 16;    // m16 x k-step: 16 bytes per lane
  static constexpr int WEIGHT_PIECE_BYTES = BLOCK_OC * PIXEL_BYTES;
  static constexpr int WEIGHT_TILE_BYTES = WEIGHT_PIECE_BYTES * kWeightPieces;
  static constexpr int SMEM_WORK_BYTES = 256;  // what the block works on
  static constexpr int SMEM_RING_BYTES = kStages * WEIGHT_TILE_BYTES;

  // Epilogue staging: some channels at a time, rows padded so that fragments land in different banks.
  static constexpr int STAGING_CHANNELS = 32;
  static constexpr int STAGING_PITCH = BLOCK_PIX + 8;
  static constexpr int SMEM_STAGING_BYTES = STAGING_CHANNELS * STAGING_PITCH * 4;

  static constexpr int64_t smem_bytes(int64_t window_pixels, int window_buffers) {
    const int64_t loop = SMEM_RING_BYTES + window_buffers * window_pixels * PIXEL_BYTES;
    return SMEM_WORK_BYTES + (loop > SMEM_STAGING_BYTES ? loop : SMEM_STAGING_BYTES);
  }

  static_assert(kNumWarps % kChunks == 0, "a warp fills one chunk position of its pixels");
  static_assert(WEIGHT_TILE_BYTES % (16 * kNumThreads) == 0, "threads share a weight tile's copy evenly");
  static_assert(STAGING_PITCH % 32 == 8, "float2 fragment stores must spread over the banks");
  static_assert(BLOCK_OC % STAGING_CHANNELS == 0 && STAGING_CHANNELS % 16 == 0, "whole m16 tiles per staging round");
  static_assert(kStages >= 2, "a tile is copied while another is used");
};

// Taps of one axis fall into classes k mod tap_step, one per phase that has taps. Taps in classes before
// `first`; with kernel_size of them in all.
TCONV_HD int taps_in_earlier_classes(int first, int kernel_size, int tap_step) {
  const int rest = kernel_size % tap_step;
  return first * (kernel_size / tap_step) + (first < rest ? first : rest);
}

TCONV_HD int taps_in_class(int first, int kernel_size, int tap_step) {
  return (kernel_size - first + tap_step - 1) / tap_step;
}

// Where a window's first tap lies in the weight stream of one (group, channel block), in tiles. The stream is
// in the order of use: phase class, window of taps (row-major), input-channel block, tap within the window.
TCONV_HD int64_t window_stream_offset(int taps_before_phase, int taps_before_window, int num_ic_blocks) {
  return static_cast<int64_t>(taps_before_phase + taps_before_window) * num_ic_blocks;
}

}  // namespace cuda
}  // namespace tconv
