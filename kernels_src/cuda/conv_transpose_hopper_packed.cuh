// Pixels of the Hopper convolution that were packed before, by the weight gradient (weight_gradient_layout.h): 16-bit
// numbers, 64 channels side by side, which go to shared memory as they are.
#pragma once

#include "conv_transpose_hopper_producers.cuh"

namespace tconv {
namespace cuda {
namespace hopper {

#include "chunk_copies.cuh"

// Where a quad of a batch's pixels was packed: all in one row of one strip, for rows of the line begin with quads.
struct PackedQuad {
  uint32_t first;  // 16-byte chunks before its first pixel
#ifdef TCONV_LOADS_AHEAD
  uint32_t there;  // a bit for each of its pixels: is it there? behind them the first's place, mod 8

  __device__ __forceinline__ bool has(uint32_t nth) const { return (there >> nth & 1) != 0; }
  __device__ __forceinline__ uint32_t pixel() const { return there >> kVectorPixels; }
#else
  uint32_t there;  // 3 bits: the first of its pixels that is there; 3: the end of those; the first's place, mod 8

  __device__ __forceinline__ uint32_t begin() const { return there & 7; }
  __device__ __forceinline__ uint32_t end() const { return there >> 3 & 7; }
  __device__ __forceinline__ uint32_t pixel() const { return there >> 6; }
#endif

  __device__ __forceinline__ static PackedQuad of_lane(const PackedQuad& mine, int lane) {
    return {__shfl_sync(0xFFFFFFFFu, mine.first, lane), __shfl_sync(0xFFFFFFFFu, mine.there, lane)};
  }
};

template <typename Storage>
__device__ __forceinline__ PackedQuad find_quad(const BatchWalk<Storage>& walk, int quad) {
  const HopperArgs<Storage>& args = walk.args;
  const Plan& plan = args.plan;
  const PackedInput& packed = args.packed;
  int batch = walk.batch, ic_block = walk.ic_block;
  if (plan.ring_ic_blocks > 1) {
    batch = static_cast<int>(args.by_ring_ic_blocks.quotient(batch));
    ic_block = walk.batch - batch * plan.ring_ic_blocks;
  }
  const int position = walk.at.first_tile * plan.tile_pixels + batch * kBatchPixels + quad * kVectorPixels;
  const int line_row = static_cast<int>(args.by_pitch.quotient(position));
  int row = line_row + plan.row_offset, image = walk.at.sample;
  if (plan.line_samples > 1) {
    const int nth = static_cast<int>(args.by_image_rows.quotient(line_row));
    row -= nth * plan.image_rows;
    image += nth;
  }
  const int column = position - line_row * plan.pitch + walk.at.strip * plan.tile_w + plan.col_offset;
  const bool inside = image < args.batch && row >= 0 && row < packed.rows && column > -kVectorPixels;
  const int begin = max(-column, 0), end = inside ? min(packed.columns - column, kVectorPixels) : 0;
  if (begin >= end) return {0, 0};
#ifdef TCONV_WALKS_DEPTH
  const int volume = static_cast<int>(args.by_slices.quotient(image));
#ifdef TCONV_SKIPS_TAPS
  if (packed.taps.count > 0) ic_block = packed.taps.places[ic_block];
#endif
  const int tap = static_cast<int>(packed.by_blocks.quotient(ic_block)), group = walk.at.group >> plan.split_bits;
  ic_block -= tap * packed.blocks;
  const int sample = image + volume * (packed.slices - static_cast<int>(args.by_slices.divisor)) +
                     args.first_slices[0] + tap * args.tap_slices;
  const int of_row = column;
#else
  const int sample = static_cast<int>(packed.by_abreast.quotient(image));
  const int of_row = (image - sample * static_cast<int>(packed.by_abreast.divisor)) * packed.pitch + column;
#endif
  const int strip = min(static_cast<int>(packed.by_segment.quotient(max(of_row, 0))), packed.strips - 1);
  const int pixel = of_row - strip * static_cast<int>(packed.by_segment.divisor);
#ifdef TCONV_WALKS_DEPTH
  const uint32_t block = (sample * packed.groups + group) * packed.blocks + ic_block;
#else
#ifdef TCONV_SPLITS_CHANNELS
  const int groups = plan.num_groups >> plan.split_bits, group = walk.at.group >> plan.split_bits;
  const uint32_t block = (sample * groups + group) * packed.blocks + ic_block;
#else
  const uint32_t block = (sample * plan.num_groups + walk.at.group) * packed.blocks + ic_block;
#endif
#endif
  const uint32_t segment = (block * packed.strips + strip) * packed.rows + row;
  constexpr int kChunks = kPixelBytes / 16;
#ifdef TCONV_LOADS_AHEAD
  const int there = (1 << end) - (1 << begin);
  return {(segment * packed.segment_pixels + pixel) * kChunks,
          static_cast<uint32_t>(there | (pixel & 7) << kVectorPixels)};
#else
  return {(segment * packed.segment_pixels + pixel) * kChunks,
          static_cast<uint32_t>(begin | end << 3 | (pixel & 7) << 6)};
#endif
}

#ifdef TCONV_LOADS_AHEAD
// The copies of a batch whose quads the first lanes have found; neighbouring lanes take the chunks of a pixel.
// mirror_bytes: from each pixel to where it is repeated.
template <int kChunkBits, bool kMirrored>
__device__ __forceinline__ void copy_batch(const uint4* segments, const PackedQuad& mine, uint32_t to,
                                           uint32_t mirror_bytes, int lane) {
  constexpr int kPixels = 32 >> kChunkBits;  // at once
  const int of_lane = lane >> kChunkBits;
  const uint32_t chunk = lane & ((1 << kChunkBits) - 1), nth = of_lane % kVectorPixels;
#pragma unroll
  for (int i = 0; i < kBatchPixels; i += kPixels) {
    const PackedQuad quad = PackedQuad::of_lane(mine, (i + of_lane) / kVectorPixels);
    const bool there = quad.has(nth);
    // Either place has its own swizzle; a batch begins at a multiple of 8 pixels.
    const uint32_t from = quad.first + nth * 8 + ((chunk ^ (quad.pixel() + nth)) & 7);
    const uint32_t at = to + (i + of_lane) * kPixelBytes + ((chunk ^ (i + of_lane)) & 7) * 16;
    const uint4* const source = segments + (there ? from : 0);
    copy_chunk(at, source, there);
    if constexpr (kMirrored) copy_chunk(at + mirror_bytes, source, there);
  }
}

#endif
// A data warp's part; neighbouring lanes take the chunks of a pixel that are wanted.
template <typename Storage>
__device__ __forceinline__ void produce_packed(const HopperArgs<Storage>& args, const Shared& shared, int warp,
                                               int data_warps, int lane) {
  const Plan& plan = args.plan;
  const uint4* const segments = reinterpret_cast<const uint4*>(args.packed.segments);
#ifdef TCONV_LOADS_AHEAD
  const bool wide = args.channel_halves == 2;
  const uint32_t mirror_bytes = plan.ring_units * (kUnitPixels * kPixelBytes);
#else
  const int chunk_bits = args.channel_halves == 2 ? 3 : 2, chunk = lane & ((1 << chunk_bits) - 1);
#endif
  for (BatchWalk<Storage> walk(args, warp); !walk.done(); walk.step(data_warps)) {
    const PackedQuad mine = find_quad(walk, lane % (kBatchPixels / kVectorPixels));
    const BatchPlace place(args, walk.ring);
    const bool mirrored = place.pixel < plan.mirror_pixels;
    await_free(shared, place, walk.ring.parity);
#ifdef TCONV_LOADS_AHEAD
    const uint32_t to = shared.ring + (place.part * plan.ring_block_pixels + place.pixel) * kPixelBytes;
    if (wide && !mirrored) {
      copy_batch<3, false>(segments, mine, to, 0, lane);
    } else if (wide) {
      copy_batch<3, true>(segments, mine, to, mirror_bytes, lane);
    } else if (!mirrored) {
      copy_batch<2, false>(segments, mine, to, 0, lane);
    } else {
      copy_batch<2, true>(segments, mine, to, mirror_bytes, lane);
    }
#else
    const int first = place.part * plan.ring_block_pixels + place.pixel;
#pragma unroll 4
    for (int i = lane >> chunk_bits; i < kBatchPixels; i += 32 >> chunk_bits) {
      const PackedQuad quad = PackedQuad::of_lane(mine, i / kVectorPixels);
      const uint32_t nth = i % kVectorPixels;
      const bool there = nth >= quad.begin() && nth < quad.end();
      // Either place has its own swizzle.
      const uint32_t from = quad.first + nth * 8 + ((chunk ^ (quad.pixel() + nth)) & 7);
      const uint32_t to = shared.ring + (first + i) * kPixelBytes + ((chunk ^ (first + i)) & 7) * 16;
      const uint4* const source = segments + (there ? from : 0);
      copy_chunk(to, source, there);
      if (mirrored) copy_chunk(to + plan.ring_units * (kUnitPixels * kPixelBytes), source, there);
    }
#endif
    arrive_after_copies(shared.unit_full + 8 * place.unit());
  }
}

}  // namespace hopper
}  // namespace cuda
}  // namespace tconv
