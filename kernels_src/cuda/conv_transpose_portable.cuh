// Transposed convolution as an implicit GEMM on tensor cores (mma.sync, sm_80 and later), all parameters.
//
//   out[oc, pixel] = sum over taps and input channels of  W_tap[oc, ic] * x[ic, pixel shifted by the tap]
//
// Output channels are the rows (A: weights), pixels the columns (B: input). Outputs are split by phase (layer.h):
// within one, a tap is a constant shift. A block keeps the input window of its tile in shared memory as one 64-byte
// row of channels per pixel, converted once, in 16-byte chunks at position chunk ^ (pixel / 2 % 4): any 8 consecutive
// pixels then cover all banks, so ldmatrix reads a tap's operand from a row shift without conflicts. The next
// window is loaded, converted and stored during the products of this one; weights stream through a cp.async ring.
#pragma once

#include "conv_transpose_portable_plan.h"
#include "fast_divisor.h"
#include "portable_epilogue.cuh"
#include "portable_operands.cuh"
#include "portable_weights.cuh"

namespace tconv {
namespace cuda {

template <typename Storage>
struct PortableArgs {
  const Storage* x;
  const unsigned char* weight_stream;
  const AxisPhase* phases;  // [stride_h + stride_w]
  const float* inv_scale;   // [out_channels], containers only
  GuardState* guard;        // containers only: raised where they cannot hold the input
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

// The taps of a window: [h, h + count_h) x [w, w + count_w), of one channel block.
struct WindowTaps {
  int h, w, count_h, count_w, ic_block;
};

// Turns window pixels into shared memory rows. A warp owns one chunk position (16 bytes of channels), a lane one
// pixel per fill, so global loads are coalesced along a line.
template <typename Config>
struct WindowFill {
  using Storage = typename NumericTraits<Config::kNumeric>::Storage;
  using Chunk = PixelChunk<Config>;
  static constexpr int kStep = Config::kFillPixels * (Config::kNumWarps / Config::kChunks);  // pixels per fill

  const Storage* source;   // this warp's first channel of the sample
  int channels;            // how many of the chunk's channels exist
  int flat, line, column;  // window pixel 0: flat position, and what its line and column add up to in the input

  __device__ __forceinline__ static unsigned chunk_position() { return threadIdx.x / 32 % Config::kChunks; }

  // This thread's pixel of fill 0; fill i is kStep * i further.
  __device__ __forceinline__ static int first_pixel() {
    return threadIdx.x / 32 / Config::kChunks * Config::kFillPixels + threadIdx.x % 32;
  }

  // A window starts where its last tap reads.
  template <typename Work, typename Args>
  __device__ __forceinline__ void prepare(const Work& work, const Args& args, const WindowTaps& taps) {
    const int first_channel = taps.ic_block * Config::BLOCK_IC + chunk_position() * Config::kChunkElements;
    source = static_cast<const Storage*>(args.x) + work.sample * args.x_stride_n +
             static_cast<int64_t>(work.group * args.ic_per_group + first_channel) * args.x_stride_c;
    channels = args.ic_per_group - first_channel;
    flat = work.flat;
    line = work.line + work.h.offset_first - (taps.h + taps.count_h - 1) * work.h.offset_step;
    column = work.column + work.w.offset_first - (taps.w + taps.count_w - 1) * work.w.offset_step;
  }

  // Leaves the chunk as it is where it is not wanted, outside the image and beyond the last channel. Nothing but the
  // loads is conditional: a branch would keep products and address arithmetic apart.
  template <typename Args>
  __device__ __forceinline__ void load(Chunk& chunk, int pixel, bool wanted, const Args& args) const {
    const int position = flat + pixel;
    const int row = static_cast<int>(args.by_window_pitch.quotient(position));
    const int h = row + line, w = position - row * args.tile.window_pitch + column;
    const bool inside = wanted && static_cast<unsigned>(h) < static_cast<unsigned>(args.in_h) &&
                        static_cast<unsigned>(w) < static_cast<unsigned>(args.in_w);
    const unsigned offset = static_cast<unsigned>(h) * args.x_stride_h + static_cast<unsigned>(w) * args.x_stride_w;
    const Storage* pointer = source + static_cast<int>(offset);
    const int present = inside ? channels : 0;
#pragma unroll
    for (int i = 0; i < Chunk::kElements; ++i) {
      if (i < present) chunk.load(i, pointer);
      pointer += args.x_stride_c;
    }
  }

  __device__ __forceinline__ static void store(const Chunk& chunk, int pixel, uint32_t window, RangeWatch& watch) {
    const unsigned swizzled = (chunk_position() ^ (threadIdx.x % 32 / 2)) & 3u;  // pixel and lane agree modulo 8
    store_shared_16(window + pixel * Config::PIXEL_BYTES + swizzled * 16, chunk.packed(watch));
  }
};

// The weight stream through the ring, one tile per step; every thread copies its share.
template <typename Config>
struct WeightRing {
  const unsigned char* source;  // this thread's first bytes of the next tile to copy
  uint32_t ring;                // shared address
  int tiles_left;
  int write_stage, read_stage;

  __device__ __forceinline__ void copy_next() {
    if (tiles_left > 0) {
      --tiles_left;
      const uint32_t dst = ring + write_stage * Config::WEIGHT_TILE_BYTES + threadIdx.x * 16;
#pragma unroll
      for (int i = 0; i < Config::WEIGHT_TILE_BYTES; i += 16 * Config::kNumThreads) cp_async_16(dst + i, source + i);
      source += Config::WEIGHT_TILE_BYTES;
      write_stage = write_stage + 1 == Config::kStages ? 0 : write_stage + 1;
    }
    cp_async_commit();  // also when empty: groups are counted
  }

  // Waits for the next tile; afterwards the tile of the step before is free, and so is what else was shared then.
  __device__ __forceinline__ uint32_t advance() {
    cp_async_wait<Config::kStages - 2>();
    __syncthreads();
    const uint32_t tile = ring + read_stage * Config::WEIGHT_TILE_BYTES;
    read_stage = read_stage + 1 == Config::kStages ? 0 : read_stage + 1;
    copy_next();
    return tile;
  }
};

// What a block works on. Lives in shared memory: read when a window changes and by the epilogue, it would only
// take registers from the products in between.
struct TileWork {
  AxisPhase h, w;
  int num_windows, windows_w;  // of all taps and channel blocks; groups of taps side by side, at least 1
  int group, oc_block, partial;
  int flat, line, column;  // origin of the tile within the phase
  int64_t sample;
};

// Blocks side by side share input: out-channel blocks first, then phases, which share output lines too.
template <typename Storage>
__device__ __forceinline__ TileWork find_work(const PortableArgs<Storage>& args, unsigned tile) {
  const TileGeometry& g = args.tile;
  TileWork work;
  unsigned rest = tile;
  const auto next_digit = [&rest](int radix) {
    const unsigned digit = rest % static_cast<unsigned>(radix);
    rest /= static_cast<unsigned>(radix);
    return static_cast<int>(digit);
  };
  work.oc_block = next_digit(args.num_oc_blocks);
  const int residue_w = next_digit(args.stride_w), residue_h = next_digit(args.stride_h);
  const int tile_w = next_digit(g.tiles_w), tile_h = next_digit(g.tiles_h);
  work.group = next_digit(args.groups);
  work.sample = rest;
  work.h = args.phases[residue_h];
  work.w = args.phases[args.stride_h + residue_w];
  work.partial = ((residue_h * args.stride_w + residue_w) * g.tiles_h + tile_h) * g.tiles_w + tile_w;
  work.flat = tile_h * g.flat_step;
  work.line = tile_h * g.line_step;
  work.column = tile_w * g.column_step;
  const int windows_h = (work.h.tap_count + g.group_h - 1) / g.group_h;
  const int windows_w = (work.w.tap_count + g.group_w - 1) / g.group_w;
  work.num_windows = windows_h * windows_w * args.num_ic_blocks;
  work.windows_w = max(windows_w, 1);
  return work;
}

// Windows in the order of use: channel blocks first, then taps. The last of a row or column has what is left.
template <typename Storage>
__device__ __forceinline__ WindowTaps find_window(const TileWork& work, const PortableArgs<Storage>& args, int index) {
  const int group = index / args.num_ic_blocks, row = group / work.windows_w;
  WindowTaps taps;
  taps.ic_block = index - group * args.num_ic_blocks;
  taps.h = row * args.tile.group_h;
  taps.w = (group - row * work.windows_w) * args.tile.group_w;
  taps.count_h = min(args.tile.group_h, work.h.tap_count - taps.h);
  taps.count_w = min(args.tile.group_w, work.w.tap_count - taps.w);
  return taps;
}

// Up to kFills fills from window pixel `first` of this thread on, but none at `end` or beyond. Pixels of a fill are as
// many as lanes and a window is whole fills, so a warp agrees on which fills it takes.
template <typename Config, int kFills>
struct FillRound {
  using Fill = WindowFill<Config>;
  typename Fill::Chunk chunks[kFills];

  template <typename Args>
  __device__ __forceinline__ void load(const Fill& fill, int first, int end, const Args& args) {
#pragma unroll
    for (int f = 0; f < kFills; ++f) {
      chunks[f] = {};  // here rather than where it is loaded: conditional registers would live through the whole kernel
      fill.load(chunks[f], first + f * Fill::kStep, first + f * Fill::kStep < end, args);
    }
  }

  __device__ __forceinline__ void store(int first, int end, uint32_t window, RangeWatch& watch) const {
#pragma unroll
    for (int f = 0; f < kFills; ++f)
      if (first + f * Fill::kStep < end) Fill::store(chunks[f], first + f * Fill::kStep, window, watch);
  }
};

// As many rounds as it takes, nothing else going on meanwhile. Ends a window: the guard is raised over all that
// `watch` has seen of it.
template <typename Config, int kFills, typename Args>
__device__ __forceinline__ void fill_pixels(const WindowFill<Config>& fill, int first, uint32_t window,
                                            RangeWatch watch, const Args& args) {
#pragma unroll 1
  for (; first < args.tile.window_pixels; first += kFills * WindowFill<Config>::kStep) {
    FillRound<Config, kFills> round;
    round.load(fill, first, args.tile.window_pixels, args);
    round.store(first, args.tile.window_pixels, window, watch);
  }
  if constexpr (Config::kContainers) watch.raise(args.guard);
}

template <typename Config>
__global__ void __launch_bounds__(Config::kNumThreads, Config::kMinBlocksPerSm) conv_transpose_portable_kernel(
    const __grid_constant__ PortableArgs<typename NumericTraits<Config::kNumeric>::Storage> args) {
  using Storage = typename NumericTraits<Config::kNumeric>::Storage;
  using Fill = WindowFill<Config>;
  static_assert(sizeof(TileWork) <= Config::SMEM_WORK_BYTES, "the block's work must fit its place");
  const TileWork& work = *reinterpret_cast<const TileWork*>(dynamic_smem());
  unsigned char* const shared = dynamic_smem() + Config::SMEM_WORK_BYTES;  // ring and windows, then staging
  const uint32_t windows = smem_address(shared) + Config::SMEM_RING_BYTES;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const TileGeometry& g = args.tile;

  await_previous_kernels();
  if (args.only_if != nullptr && *args.only_if == 0) return;
  for (unsigned tile = blockIdx.x; tile < args.num_tiles; tile += gridDim.x) {
    if (threadIdx.x == 0) *reinterpret_cast<TileWork*>(dynamic_smem()) = find_work(args, tile);
    __syncthreads();

    const int num_steps = work.h.tap_count * work.w.tap_count * args.num_ic_blocks;
    WeightRing<Config> ring;
    {
      const int taps_before =
          taps_in_earlier_classes(work.h.tap_first, args.kernel_h, work.h.tap_step) * args.kernel_w +
          work.h.tap_count * taps_in_earlier_classes(work.w.tap_first, args.kernel_w, work.w.tap_step);
      const int64_t tiles_before = static_cast<int64_t>(work.group * args.num_oc_blocks + work.oc_block) *
                                   (args.kernel_h * args.kernel_w) * args.num_ic_blocks;
      ring.source = args.weight_stream + Config::WEIGHT_TILE_BYTES *
                                             (tiles_before + window_stream_offset(taps_before, 0, args.num_ic_blocks));
      ring.source += threadIdx.x * 16;
      ring.ring = smem_address(shared);
      ring.tiles_left = num_steps;
      ring.write_stage = ring.read_stage = 0;
    }
#pragma unroll
    for (int i = 0; i < Config::kStages - 1; ++i) ring.copy_next();

    // Bytes from window pixel 0 to the segment whose rows this lane names to ldmatrix: the upper half warp those
    // of a pair's second segment. Idle segments re-read segment 0.
    uint32_t pair_offset[Config::kSegmentPairs];
#pragma unroll
    for (int s = 0; s < Config::kSegmentPairs; ++s) {
      const int first = (warp * Config::kSegmentsPerWarp + 2 * s + lane / 16) * 8;
      const int line = first / g.segment_width;
      pair_offset[s] =
          first >= g.tile_pixels ? 0 : (line * g.window_pitch + first - line * g.segment_width) * Config::PIXEL_BYTES;
    }

    Fill fill;
    fill.prepare(work, args, find_window(work, args, 0));
    fill_pixels<Config, Config::kFirstFills>(fill, Fill::first_pixel(), windows, RangeWatch{}, args);

    // Operands are loaded one k-step ahead of their products, so a step's second k-step is multiplied after the
    // next step's barrier, where the first operands are still on their way.
    Fragments<Config> first, second;
    second.clear();
    float acc[Config::kSegmentsPerWarp][Config::kRowTiles][4] = {};

    // Registers are short: what the steps rarely need is computed again from `work`.
#pragma unroll 1
    for (int index = 0; index < work.num_windows; ++index) {  // none in a phase without taps, which is the bias alone
      const WindowTaps taps = find_window(work, args, index);
      const bool more = index + 1 < work.num_windows;
      if (more) fill.prepare(work, args, find_window(work, args, index + 1));
      const int window_bytes = g.window_pixels * Config::PIXEL_BYTES;
      const uint32_t window = windows + index % 2 * window_bytes;
      const uint32_t next_window = windows + (index + 1) % 2 * window_bytes;
      const int steps = taps.count_h * taps.count_w, num_fills = (g.window_pixels + Fill::kStep - 1) / Fill::kStep;
      const int loading_steps = max(steps - 1, 1);  // not the last: nothing would hide it
      const int fill_step = min(Config::kFillsInFlight, (num_fills + loading_steps - 1) / loading_steps) * Fill::kStep;
      FillRound<Config, Config::kFillsInFlight> round;  // loaded in one step, stored in the next
      RangeWatch watch;
      int next_pixel = more ? Fill::first_pixel() : g.window_pixels;

      int pixel = lane % 8, steps_in_line = taps.count_w;
#pragma unroll 1
      for (int step = steps; step > 0; --step) {
        const uint32_t weights = ring.advance() + lane * 16;
        const unsigned chunk = (lane / 8 % 2 ^ pixel / 2) & 3u;
        const uint32_t window_row = window + pixel * Config::PIXEL_BYTES + chunk * 16;
        const int loaded = step == steps ? next_pixel : next_pixel - fill_step;  // by the step before
        const int loaded_end = min(next_pixel, g.window_pixels);
        next_pixel += fill_step;
        if constexpr (Config::kStrict) {
          round.store(loaded, loaded_end, next_window, watch);
          round.load(fill, next_pixel - fill_step, min(next_pixel, g.window_pixels), args);
          multiply_split_step<Config>(acc, weights, window_row, pair_offset);
        } else {
          first.load(0, weights, window_row, pair_offset);
          multiply<Config>(acc, second);
          round.store(loaded, loaded_end, next_window, watch);
          second.load(1, weights, window_row, pair_offset);
          round.load(fill, next_pixel - fill_step, min(next_pixel, g.window_pixels), args);
          multiply<Config>(acc, first);
        }

        pixel += work.w.offset_step;
        if (--steps_in_line == 0) {
          pixel += work.h.offset_step * g.window_pitch - taps.count_w * work.w.offset_step;
          steps_in_line = taps.count_w;
        }
      }
      round.store(next_pixel - fill_step, min(next_pixel, g.window_pixels), next_window, watch);
      // Few taps: what the steps could not take along.
      fill_pixels<Config, Config::kLateFills>(fill, next_pixel, next_window, watch, args);
    }
    if constexpr (!Config::kStrict) multiply<Config>(acc, second);
    cp_async_wait<0>();

    TileOutput<Config, Storage> output;
    output.channel = work.group * args.oc_per_group + work.oc_block * Config::BLOCK_OC;
    output.num_channels = min(Config::BLOCK_OC, args.oc_per_group - work.oc_block * Config::BLOCK_OC);
    output.plane = args.out_plane;
    output.inv_scale = args.inv_scale + output.channel;
    const int64_t num_channels = args.groups * args.oc_per_group;
    output.out = args.out + (work.sample * num_channels + output.channel) * args.out_plane;
    const int64_t num_partials = static_cast<int64_t>(args.stride_h * args.stride_w) * (g.tiles_h * g.tiles_w);
    output.partials = args.partials == nullptr
                          ? nullptr
                          : args.partials + (work.sample * num_partials + work.partial) * num_channels + output.channel;
#pragma unroll
    for (int i = 0; i < TileOutput<Config, Storage>::kPixelsPerLane; ++i) {
      const int pixel = lane + 32 * i, position = work.flat + pixel;
      const int row = static_cast<int>(args.by_line_width.quotient(position));
      const int h = work.line + row, w = work.column + position - row * g.line_width;
      const bool valid = pixel < g.tile_pixels && h < work.h.out_count && w < work.w.out_count;
      output.offset[i] =
          valid ? (work.h.out_first + h * work.h.out_step) * args.out_w + work.w.out_first + w * work.w.out_step : -1;
    }
    store_tile<Config, Storage>(acc, reinterpret_cast<float*>(shared), output, args.epilogue);
    __syncthreads();  // the next tile overwrites all of shared memory
  }
}

}  // namespace cuda
}  // namespace tconv
