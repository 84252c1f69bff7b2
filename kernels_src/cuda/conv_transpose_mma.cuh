// Transposed convolution as an implicit GEMM on tensor cores (mma.sync, sm_80 and later), all parameters.
//
//   out[oc, pixel] = sum over taps and input channels of  W_tap[oc, ic] * x[ic, pixel shifted by the tap]
//
// Output channels are the rows (A: weights), pixels the columns (B: input). Outputs are split by phase (problem.h):
// within one, a tap is a constant shift. A block keeps the input window of its tile in shared memory as one 64-byte
// row of channels per pixel, converted once, in 16-byte chunks at position chunk ^ (pixel / 2 % 4): any 8 consecutive
// pixels then cover all banks, so ldmatrix reads a tap's operand from a row shift without conflicts. The next
// window is loaded, converted and stored during the products of this one; weights stream through a cp.async ring.
#pragma once

#include "conv_transpose_mma_plan.h"
#include "fast_divisor.h"
#include "mma_epilogue.cuh"
#include "mma_operands.cuh"
#include "mma_weights.cuh"

namespace tconv {
namespace cuda {

template <typename Storage>
struct MmaParams {
  const Storage* x;
  const unsigned char* weight_stream;
  const AxisPhase* phases;  // [stride_h + stride_w]
  Storage* out;
  Moments* partials;   // or null
  const int* only_if;  // null, or on the device: nothing is done where it holds 0
  EpilogueArgs<Storage> epilogue;
  TileGeometry tile;
  FastDivisor by_window_pitch, by_line_width;
  int64_t x_stride_n, out_plane;
  unsigned num_tiles;
  int x_stride_c, x_stride_h, x_stride_w;
  int in_h, in_w, out_w;
  int kernel_h, kernel_w, stride_h, stride_w;
  int groups, ic_per_group, oc_per_group, num_ic_blocks, num_oc_blocks;
};

// Turns window pixels into shared memory rows. A warp owns one chunk position (16 bytes of channels), a lane one
// pixel per fill, so global loads are coalesced along a line.
template <typename Config>
struct WindowFill {
  using Storage = typename NumericTraits<Config::kNumeric>::Storage;
  using Chunk = PixelChunk<Config>;
  static constexpr int kStep = Config::kFillPixels * (Config::kNumWarps / Config::kChunks);  // pixels per fill

  const Storage* source;  // this warp's first channel of the sample
  int channels;           // how many of the chunk's channels exist
  int flat, line, column; // window pixel 0: flat position, and what its line and column add up to in the input

  __device__ __forceinline__ static unsigned chunk_position() { return threadIdx.x / 32 % Config::kChunks; }

  // This thread's pixel of fill 0; fill i is kStep * i further.
  __device__ __forceinline__ static int first_pixel() {
    return threadIdx.x / 32 / Config::kChunks * Config::kFillPixels + threadIdx.x % 32;
  }

  // The window of the taps from (tap_h, tap_w) on, of one channel block. It starts where the last tap reads.
  template <typename Work, typename Params>
  __device__ __forceinline__ void prepare(const Work& work, const Params& p, int tap_h, int tap_w, int ic_block) {
    const int first_channel = ic_block * Config::BLOCK_IC + chunk_position() * Config::kChunkElements;
    source = static_cast<const Storage*>(p.x) + work.sample * p.x_stride_n +
             static_cast<int64_t>(work.group * p.ic_per_group + first_channel) * p.x_stride_c;
    channels = p.ic_per_group - first_channel;
    flat = work.flat;
    line = work.line + work.h.offset_first -
           (min(tap_h + p.tile.group_h, work.h.tap_count) - 1) * work.h.offset_step;
    column = work.column + work.w.offset_first -
             (min(tap_w + p.tile.group_w, work.w.tap_count) - 1) * work.w.offset_step;
  }

  // Zeros outside the image, beyond the last channel and where not wanted. No branches: the loads are to be scheduled
  // among the products.
  template <typename Params>
  __device__ __forceinline__ void load(Chunk& chunk, int pixel, bool wanted, const Params& p) const {
    const int position = flat + pixel;
    const int row = static_cast<int>(p.by_window_pitch.quotient(position));
    const int h = row + line, w = position - row * p.tile.window_pitch + column;
    const bool inside = static_cast<unsigned>(h) < static_cast<unsigned>(p.in_h) &&
                        static_cast<unsigned>(w) < static_cast<unsigned>(p.in_w);
    const Storage* pointer =
        source + static_cast<int64_t>(h) * p.x_stride_h + static_cast<int64_t>(w) * p.x_stride_w;
    const int present = inside && wanted ? channels : 0;
#pragma unroll
    for (int i = 0; i < Chunk::kElements; ++i) {
      chunk.bits[i] = 0;
      if (i < present) chunk.load(i, pointer);
      pointer += p.x_stride_c;
    }
  }

  __device__ __forceinline__ static void store(const Chunk& chunk, int pixel, bool wanted, unsigned char* window) {
    const unsigned swizzled = (chunk_position() ^ (threadIdx.x % 32 / 2)) & 3u;  // pixel and lane agree modulo 8
    const uint4 packed = chunk.packed();
    if (wanted) *reinterpret_cast<uint4*>(window + pixel * Config::PIXEL_BYTES + swizzled * 16) = packed;
  }
};

// The weight stream through the ring, one tile per step; every thread copies its share.
template <typename Config>
struct WeightRing {
  const unsigned char* source;  // this thread's first bytes of the next tile to copy
  unsigned char* ring;
  int tiles_left;
  int write_stage, read_stage;

  __device__ __forceinline__ void copy_next() {
    if (tiles_left > 0) {
      --tiles_left;
      const uint32_t dst = smem_address(ring) + write_stage * Config::WEIGHT_TILE_BYTES + threadIdx.x * 16;
#pragma unroll
      for (int i = 0; i < Config::WEIGHT_TILE_BYTES; i += 16 * Config::kNumThreads)
        cp_async_16(dst + i, source + i);
      source += Config::WEIGHT_TILE_BYTES;
      write_stage = write_stage + 1 == Config::kStages ? 0 : write_stage + 1;
    }
    cp_async_commit();  // also when empty: groups are counted
  }

  // Waits for the next tile; afterwards the tile of the step before is free, and so is what else was shared then.
  __device__ __forceinline__ const unsigned char* advance() {
    cp_async_wait<Config::kStages - 2>();
    __syncthreads();
    const unsigned char* tile = ring + read_stage * Config::WEIGHT_TILE_BYTES;
    read_stage = read_stage + 1 == Config::kStages ? 0 : read_stage + 1;
    copy_next();
    return tile;
  }
};

// What a block works on. Lives in shared memory: read when a window changes and by the epilogue, it would only
// take registers from the products in between.
struct TileWork {
  AxisPhase h, w;
  int group, oc_block, partial;
  int flat, line, column;  // origin of the tile within the phase
  int64_t sample;
};

// Blocks side by side share input: out-channel blocks first, then phases, which share output lines too.
template <typename Storage>
__device__ __forceinline__ TileWork find_work(const MmaParams<Storage>& p, unsigned tile) {
  const TileGeometry& g = p.tile;
  TileWork work;
  unsigned rest = tile;
  const auto next_digit = [&rest](int radix) {
    const unsigned digit = rest % static_cast<unsigned>(radix);
    rest /= static_cast<unsigned>(radix);
    return static_cast<int>(digit);
  };
  work.oc_block = next_digit(p.num_oc_blocks);
  const int residue_w = next_digit(p.stride_w), residue_h = next_digit(p.stride_h);
  const int tile_w = next_digit(g.tiles_w), tile_h = next_digit(g.tiles_h);
  work.group = next_digit(p.groups);
  work.sample = rest;
  work.h = p.phases[residue_h];
  work.w = p.phases[p.stride_h + residue_w];
  work.partial = ((residue_h * p.stride_w + residue_w) * g.tiles_h + tile_h) * g.tiles_w + tile_w;
  work.flat = tile_h * g.flat_step;
  work.line = tile_h * g.line_step;
  work.column = tile_w * g.column_step;
  return work;
}

// kFills fills at once, nothing else going on meanwhile.
template <typename Config, int kFills, typename Params>
__device__ __forceinline__ void copy_pixels(const WindowFill<Config>& fill, int pixel, unsigned char* window,
                                            const Params& p) {
  using Fill = WindowFill<Config>;
  typename Fill::Chunk chunks[kFills];
#pragma unroll
  for (int f = 0; f < kFills; ++f)
    fill.load(chunks[f], pixel + f * Fill::kStep, pixel + f * Fill::kStep < p.tile.window_pixels, p);
#pragma unroll
  for (int f = 0; f < kFills; ++f)
    Fill::store(chunks[f], pixel + f * Fill::kStep, pixel + f * Fill::kStep < p.tile.window_pixels, window);
}

template <typename Config>
__global__ void __launch_bounds__(Config::kNumThreads, Config::kMinBlocksPerSm)
    conv_transpose_mma_kernel(
        const __grid_constant__ MmaParams<typename NumericTraits<Config::kNumeric>::Storage> p) {
  using Storage = typename NumericTraits<Config::kNumeric>::Storage;
  using Fill = WindowFill<Config>;
  static_assert(sizeof(TileWork) <= Config::SMEM_WORK_BYTES, "the block's work must fit its place");
  const TileWork& work = *reinterpret_cast<const TileWork*>(dynamic_smem());
  unsigned char* const shared = dynamic_smem() + Config::SMEM_WORK_BYTES;  // ring and windows, then staging
  unsigned char* const windows = shared + Config::SMEM_RING_BYTES;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const TileGeometry& g = p.tile;

  if (p.only_if != nullptr && *p.only_if == 0) return;
  for (unsigned tile = blockIdx.x; tile < p.num_tiles; tile += gridDim.x) {
    if (threadIdx.x == 0) *reinterpret_cast<TileWork*>(dynamic_smem()) = find_work(p, tile);
    __syncthreads();

    float acc[Config::kSegmentsPerWarp][Config::kRowTiles][4] = {};
    const int num_steps = work.h.tap_count * work.w.tap_count * p.num_ic_blocks;
    if (num_steps > 0) {
      WeightRing<Config> ring;
      {
        const int taps_before =
            taps_in_earlier_classes(work.h.tap_first, p.kernel_h, work.h.tap_step) * p.kernel_w +
            work.h.tap_count * taps_in_earlier_classes(work.w.tap_first, p.kernel_w, work.w.tap_step);
        const int64_t tiles_before = static_cast<int64_t>(work.group * p.num_oc_blocks + work.oc_block) *
                                     (p.kernel_h * p.kernel_w) * p.num_ic_blocks;
        ring.source = p.weight_stream + Config::WEIGHT_TILE_BYTES *
                                            (tiles_before + window_stream_offset(taps_before, 0, p.num_ic_blocks));
        ring.source += threadIdx.x * 16;
        ring.ring = shared;
        ring.tiles_left = num_steps;
        ring.write_stage = ring.read_stage = 0;
      }
#pragma unroll
      for (int i = 0; i < Config::kStages - 1; ++i) ring.copy_next();

      // Bytes from window pixel 0 to each of the warp's segments; idle segments re-read segment 0.
      uint32_t segment_offset[Config::kSegmentsPerWarp];
#pragma unroll
      for (int s = 0; s < Config::kSegmentsPerWarp; ++s) {
        const int first = (warp * Config::kSegmentsPerWarp + s) * 8;
        segment_offset[s] = first >= g.tile_pixels
                                ? 0
                                : (first / g.segment_width * g.window_pitch + first % g.segment_width) *
                                      Config::PIXEL_BYTES;
      }

      // A window: taps [tap_h, tap_h + group_h) x [tap_w, tap_w + group_w), cut at the phase's end, of one
      // channel block.
      int tap_h = 0, tap_w = 0, ic_block = 0;
      Fill fill;
      fill.prepare(work, p, tap_h, tap_w, ic_block);
#pragma unroll 1
      for (int pixel = Fill::first_pixel(); pixel < g.window_pixels; pixel += 4 * Fill::kStep)
        copy_pixels<Config, 4>(fill, pixel, windows, p);

      int buffer = 0;
      bool more = true;
#pragma unroll 1
      while (more) {
        const int taps_h = min(g.group_h, work.h.tap_count - tap_h), taps_w = min(g.group_w, work.w.tap_count - tap_w);
        if (++ic_block == p.num_ic_blocks) {
          ic_block = 0;
          tap_w += g.group_w;
          if (tap_w >= work.w.tap_count) {
            tap_w = 0;
            tap_h += g.group_h;
            more = tap_h < work.h.tap_count;
          }
        }
        if (more) fill.prepare(work, p, tap_h, tap_w, ic_block);
        const int window_bytes = g.window_pixels * Config::PIXEL_BYTES;
        const uint32_t window = smem_address(windows) + buffer * window_bytes;
        unsigned char* const next_window = windows + (buffer ^ 1) * window_bytes;
        const int steps = taps_h * taps_w, num_fills = (g.window_pixels + Fill::kStep - 1) / Fill::kStep;
        const int fills_per_step = min(Config::kFillsInFlight, (num_fills + steps - 1) / steps);
        int next_pixel = more ? Fill::first_pixel() : g.window_pixels;

        const int column_step = work.w.offset_step, line_step = work.h.offset_step * g.window_pitch;
        int line_pixel = lane % 8, steps_in_line = taps_w, pixel = line_pixel;
#pragma unroll 1
        for (int step = steps; step > 0; --step) {
          const unsigned char* weights = ring.advance();
          typename Fill::Chunk chunks[Config::kFillsInFlight];
          bool wanted[Config::kFillsInFlight];
#pragma unroll
          for (int f = 0; f < Config::kFillsInFlight; ++f) {
            wanted[f] = f < fills_per_step && next_pixel + f * Fill::kStep < g.window_pixels;
            fill.load(chunks[f], next_pixel + f * Fill::kStep, wanted[f], p);
          }
          const unsigned chunk = (lane / 8 ^ pixel / 2) & 3u;
          multiply_step<Config>(acc, weights, window + pixel * Config::PIXEL_BYTES + chunk * 16, segment_offset, lane);
#pragma unroll
          for (int f = 0; f < Config::kFillsInFlight; ++f)
            Fill::store(chunks[f], next_pixel + f * Fill::kStep, wanted[f], next_window);
          next_pixel += fills_per_step * Fill::kStep;

          pixel += column_step;
          if (--steps_in_line == 0) {
            steps_in_line = taps_w;
            line_pixel += line_step;
            pixel = line_pixel;
          }
        }
        // Few taps: what the steps could not take along.
#pragma unroll 1
        for (; next_pixel < g.window_pixels; next_pixel += Config::kFillsInFlight * Fill::kStep)
          copy_pixels<Config, Config::kFillsInFlight>(fill, next_pixel, next_window, p);
        buffer ^= 1;
      }
      cp_async_wait<0>();
    }

    TileOutput<Config, Storage> output;
    output.channel = work.group * p.oc_per_group + work.oc_block * Config::BLOCK_OC;
    output.num_channels = min(Config::BLOCK_OC, p.oc_per_group - work.oc_block * Config::BLOCK_OC);
    output.plane = p.out_plane;
    const int64_t num_channels = p.groups * p.oc_per_group;
    output.out = p.out + (work.sample * num_channels + output.channel) * p.out_plane;
    const int64_t num_partials = static_cast<int64_t>(p.stride_h * p.stride_w) * (g.tiles_h * g.tiles_w);
    output.partials =
        p.partials == nullptr
            ? nullptr
            : p.partials + (work.sample * num_partials + work.partial) * num_channels + output.channel;
#pragma unroll
    for (int i = 0; i < TileOutput<Config, Storage>::kPixelsPerLane; ++i) {
      const int pixel = lane + 32 * i, position = work.flat + pixel;
      const int row = static_cast<int>(p.by_line_width.quotient(position));
      const int h = work.line + row, w = work.column + position - row * g.line_width;
      const bool valid = pixel < g.tile_pixels && h < work.h.out_count && w < work.w.out_count;
      output.offset[i] =
          valid ? (work.h.out_first + h * work.h.out_step) * p.out_w + work.w.out_first + w * work.w.out_step : -1;
    }
    store_tile<Config, Storage>(acc, reinterpret_cast<float*>(shared), output, p.epilogue);
    __syncthreads();  // the next tile overwrites all of shared memory
  }
}

}  // namespace cuda
}  // namespace tconv
