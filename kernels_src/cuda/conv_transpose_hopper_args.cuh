// What the roles of the Hopper convolution share: compile-time shape, arguments, the walk over tiles, shared memory.
#pragma once

#include "../epilogue.h"
#include "../moments.h"
#include "conv_transpose_hopper_weights.cuh"
#include "fast_divisor.h"
#include "hopper_primitives.cuh"
#ifdef TCONV_SKIPS_TAPS
#include "present_taps.h"
#endif

namespace tconv {
namespace cuda {
namespace hopper {

// Warpgroups of consumers multiply, N columns each; one or two more produce.
template <int kIndex, typename Storage>
struct HopperConfig {
  static constexpr Shape kShape = kShapes[kIndex];
  static constexpr int kConsumers = kShape.consumers, kN = kShape.n;
  static_assert(kConsumers == 2, "register shares are worked out for this");
  static constexpr int kConsumerWarps = 4 * kConsumers;
  static constexpr int kProducerWarps = kShape.producer_warps;
  static constexpr int kThreads = 32 * (kConsumerWarps + kProducerWarps);
  // Of 65536 registers: the share of each thread at launch, in eights; then what producers do not need goes to
  // consumers, for N/2 accumulators. In 16 bits data warps need less.
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kConsumerRegisters = kProducerWarps > 4 ? 152 : kShape.wide || sizeof(Storage) == 2 ? 200 : 184;
  static constexpr int kProducerRegisters =
      (kThreads * kLaunchRegisters / 32 - kConsumerWarps * kConsumerRegisters) / kProducerWarps / 8 * 8;
  static_assert(32 * (kConsumerWarps * kConsumerRegisters + kProducerWarps * kProducerRegisters) <=
                    kThreads * kLaunchRegisters,
                "what some take others must give, or setmaxnreg waits for ever");
};

// A batch is what a data warp moves at once: kBatchPixels x a block of input channels, in halves.
constexpr int kHalfChannels = kBlockIC / 2;
static_assert(kBatchPixels == 8 * kVectorPixels, "a batch is 8 quads of pixels");
constexpr int kBatchesPerUnit = kUnitPixels / kBatchPixels;

// Outputs go to memory through a buffer per consumer warp: its channels x kStoreColumns columns, rows padded so that
// neither writing fragments nor reading rows conflicts.
constexpr int kStorePitch = kStoreColumns + 8;
static_assert(kStoreChannels * kStorePitch * 4 == kStoreBytesPerWarp, "the plan counts the store buffers");

#ifdef TCONV_READS_PACKED
// An input that lies in segments of 64 channels (weight_gradient_layout.h), scaled already where it is scaled.
struct PackedInput {
  const unsigned char* segments;  // null: the input is a tensor
  FastDivisor by_segment;         // pixels from one strip's first to the next one's
  FastDivisor by_abreast;         // images side by side, `pitch` pixels apart
  int columns, rows;              // of an image
  int strips, blocks, pitch, segment_pixels;
#ifdef TCONV_SKIPS_TAPS
  PresentTaps taps;  // blocks of channels are counted as it counts them
#endif
#ifdef TCONV_WALKS_DEPTH
  FastDivisor by_blocks;  // a depth tap is so many blocks, of another slice
  int slices, groups;     // of a volume
#endif
#ifdef TCONV_GRADIENT_CHAINS
  // What is launched: weights may be transformed once for several slices of the batch.
  enum Step { kBoth, kWeights, kOutputs } step = kBoth;
#endif
};

#endif
template <typename Storage>
struct HopperArgs {
  Plan plan;
  FastDivisor by_pitch, by_pooled_w, by_image_rows;
  FastDivisor by_ring_ic_blocks;
  const Storage* x;
  int64_t x_stride_n, x_stride_c, x_stride_h, x_stride_w;
  int batch, in_h, in_w;
  int channel_halves;  // of a block of input channels that are not empty
  // x_stride_w == 1, every quad of pixels aligned, channels in whole halves, offsets in a sample's plane below 2^31.
  int whole_batches;
  int pair_stores;  // neighbouring outputs of a pass are neighbours in memory, pairs aligned
  int out_h, out_w, stride_h, stride_w;
  const uint4* weight_tiles;
  const float* inv_scale;
  GuardState* guard;  // null: no guard needed (16-bit inputs)
  EpilogueArgs<Storage> epilogue;
  Storage* out;
  // Pooling: [out_channels] or null; windows give their smallest value where it is negative.
  const Storage* pool_weight;
  Moments* partials;  // or null
#ifdef TCONV_JOINS_QUADS
  bool joins;                // the chain's operand of the output's shape is read where outputs are stored,
  int64_t operand_distance;  // so many elements behind them,
  int operands_begin;        // through shared memory from here on
  int64_t result_distance;   // and its results are stored so many elements behind them, or 0, in their place
#endif
#ifdef TCONV_REDUCES_CHANNELS
  int64_t extremum;
#endif
#ifdef TCONV_KEEPS_MASK
  uint8_t* mask;  // as out, or null
#endif
#ifdef TCONV_READS_PACKED
  PackedInput packed;
#endif
#ifdef TCONV_WALKS_DEPTH
  // Images that are slices of volumes (depth_walk.h); a call of two dimensions has volumes of one slice.
  FastDivisor by_slices, by_tap_channels;
  int in_depth, tap_slices, first_slices[kMostResidues];  // by residue
  int64_t x_stride_d, out_stride_n, out_stride_c, out_stride_d, out_stride_residue;

  // Elements from the outputs of image 0 to those of `image`.
  __device__ __forceinline__ int64_t out_offset(int image) const {
    const int volume = static_cast<int>(by_slices.quotient(image));
    return volume * out_stride_n + (image - volume * static_cast<int>(by_slices.divisor)) * out_stride_d;
  }

  // Elements from x to what a group reads of a volume.
  __device__ __forceinline__ int64_t volume_offset(int volume, int group) const {
    return volume * x_stride_n + (group >> plan.split_bits) * static_cast<int>(by_tap_channels.divisor) * x_stride_c;
  }

  // The outputs of a group's channel in image 0.
  __device__ __forceinline__ Storage* channel_out(int group, int residue, int channel) const {
    return out + residue * out_stride_residue + (group * plan.out_channels_per_group + channel) * out_stride_c;
  }
#endif
};

// The tiles of a block, in order. Those of all lines of a strip, one after the other, are cut into ranges; a block
// takes one in as many as there are blocks, the same of each strip side by side, so that memory sees long runs. A chunk
// is what of a range lies in one line.
struct TileCursor {
  int chunk;  // its first tile's place among those of its strip, and the strip
  int first_tile, tile, tile_end;
  int strip, group, sample;  // the line's first
#ifdef TCONV_WALKS_DEPTH
  int residue;  // and group is one of the others'
#endif

  __device__ __forceinline__ TileCursor(const Plan& plan) { enter_range(plan, blockIdx.x); }
  __device__ __forceinline__ TileCursor(const Plan& plan, int of_chunk) { enter(plan, of_chunk); }

  __device__ __forceinline__ void enter_range(const Plan& plan, int range) {
    const int nth = range / plan.num_strips;
    enter(plan, nth * (plan.range_tiles * plan.num_strips) + range - nth * plan.num_strips);
  }

  __device__ __forceinline__ void enter(const Plan& plan, int new_chunk) {
    chunk = new_chunk;
    int rest = chunk;
    const auto next_digit = [&rest](int radix) {  // most radices are 1, and divisions are slow
      if (radix == 1) return 0;
      const int quotient = rest / radix, digit = rest - quotient * radix;
      rest = quotient;
      return digit;
    };
    strip = next_digit(plan.num_strips);
    const int left_of_range = plan.range_tiles - rest % plan.range_tiles;
    first_tile = tile = next_digit(plan.line_tiles);
    tile_end = min(tile + left_of_range, plan.num_tiles);
    group = next_digit(plan.num_groups);
#ifdef TCONV_WALKS_DEPTH
    residue = group & (1 << plan.residue_bits) - 1;
    group >>= plan.residue_bits;
#endif
    sample = rest * plan.line_samples;
  }

#ifdef TCONV_WALKS_DEPTH
  // By which weights are counted.
  __device__ __forceinline__ int part(const Plan& plan) const { return (group << plan.residue_bits) + residue; }
#endif
  __device__ __forceinline__ bool done(const Plan& plan) const { return chunk >= plan.total_tiles; }
  __device__ __forceinline__ bool last_of_chunk() const { return tile + 1 == tile_end; }

  __device__ __forceinline__ void next_chunk(const Plan& plan) {
    const int place = chunk / plan.num_strips, nth = place / plan.range_tiles;
    const int left_of_range = (nth + 1) * plan.range_tiles - place, left_of_line = plan.line_tiles - first_tile;
    if (left_of_line < left_of_range) return enter(plan, chunk + left_of_line * plan.num_strips);
    enter_range(plan, nth * plan.num_strips + strip + gridDim.x);
  }

  __device__ __forceinline__ void next(const Plan& plan) {
    if (++tile == tile_end) next_chunk(plan);
  }
};

// A position in a ring of `size` slots that knows how often it has gone round.
struct RingCursor {
  int slot = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void next(int size) {
    if (++slot == size) {
      slot = 0;
      parity ^= 1;
    }
  }
};

#ifdef TCONV_SKIPS_TAPS
// Of a walk over planes, whose one phase has the tiles of a sweep block by block of channels: is the nth multiplied?
__device__ __forceinline__ bool has_weights(const Plan& plan, const PresentTaps& taps, int nth) {
  if (!taps.any_short()) return true;
  const Phase& phase = plan.phases[0];
  const int of_block = phase.taps_h * phase.taps_w, block = nth / of_block % plan.num_ic_blocks;
  const int tap = nth % of_block, row = tap / phase.taps_w, column = tap - row * phase.taps_w;
  return row < phase.taps_h - taps.lacks_row(block) && column < phase.taps_w - taps.lacks_column(block);
}

#endif
// Units that hold the first `pixels` of a line.
__device__ __forceinline__ int units_below(int pixels) { return (pixels + kUnitPixels - 1) / kUnitPixels; }

struct Shared {
  uint32_t ring, weights, stores;
  uint32_t unit_full, unit_empty, weight_full, weight_empty;  // arrays of 8-byte barriers
  uint32_t turn;                                              // one for each warpgroup
#ifdef TCONV_JOINS_QUADS
  uint32_t operands;
#endif
#ifdef TCONV_REDUCES_CHANNELS
  uint32_t reduced;  // likewise
#endif
};

template <typename Storage>
__device__ __forceinline__ Shared shared_layout(const HopperArgs<Storage>& args, uint32_t base) {
  Shared s;
  s.ring = base;
  s.weights = s.ring + args.plan.ring_bytes;
  s.stores = s.weights + args.plan.weight_stages * kTapBytes;
  s.unit_full = s.stores + args.plan.num_consumers * 4 * args.plan.store_bytes_per_warp;
  s.unit_empty = s.unit_full + 8 * kMaxRingUnits;
  s.weight_full = s.unit_empty + 8 * kMaxRingUnits;
  s.weight_empty = s.weight_full + 8 * kMaxWeightStages;
  s.turn = s.weight_empty + 8 * kMaxWeightStages;
#ifdef TCONV_JOINS_QUADS
  s.operands = base + args.operands_begin;
#endif
#ifdef TCONV_REDUCES_CHANNELS
  s.reduced = s.turn + 2 * 8;
#endif
  return s;
}

}  // namespace hopper
}  // namespace cuda
}  // namespace tconv
