// Transposed convolution on Hopper's tensor cores (wgmma), from NCHW to NCHW with no layout sweep.
//
// D[64 output channels x N pixels] += W_tap[64 x 64] * X_tap[64 x N], one product per tap. Pixels lie in shared memory as
// rows of 64 channels (128 bytes, 128-byte swizzle), so that a tap is the same window read from a start address
// shifted by whole pixels: each input value is loaded and converted once per tile, not once per tap.
// conv_transpose_sm90_plan.h defines tile, sweep, segment, window and ring; README.md follows a value through.
//
// The first warpgroups multiply and run the epilogue. The warps after them load input values (kVectorPixels pixels x 8
// channels a thread), convert, and store them as pixel rows; the last warp streams weight tiles by bulk copy.
// A row of the ring and a stage of the weights each have a full and an empty barrier.
#pragma once

#include <type_traits>

#include "../epilogue.h"
#include "../moments.h"
#include "conv_transpose_sm90_plan.h"
#include "conv_transpose_sm90_weights.cuh"
#include "sm90_primitives.cuh"
#include "sm90_wgmma.cuh"

namespace tconv {
namespace cuda {
namespace sm90 {

// kConsumers warpgroups multiply, N columns each. Two with wide segments read less shared memory for a product; three
// with narrow ones, and twice the producers, hide more of what is not multiplying: many bytes or much epilogue for few taps.
template <int kConsumers, int N>
struct Sm90Config {
  static_assert(kConsumers == 2 || kConsumers == 3, "register shares are worked out for these");
  static constexpr int kConsumerWarps = 4 * kConsumers;
  static constexpr int kProducerWarps = kConsumers == 2 ? 4 : 8;
  static constexpr int kDataWarps = kProducerWarps - 1;  // the last producer warp streams weights
  static constexpr int kThreads = 32 * (kConsumerWarps + kProducerWarps);
  // Of 65536 registers: the share of each thread at launch, in eights; then what consumers do not need for N/2
  // accumulators goes to producers, for loads in flight.
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kConsumerRegisters = kConsumers == 3 ? 104 : N > 184 ? 184 : 160;
  static constexpr int kProducerRegisters = kConsumers == 3 ? 80 : 3 * kLaunchRegisters - 2 * kConsumerRegisters;
  static_assert(32 * (kConsumerWarps * kConsumerRegisters + kProducerWarps * kProducerRegisters) <= kThreads * kLaunchRegisters,
                "what some take others must give, or setmaxnreg waits for ever");
  // Batches whose loads a data warp has under way at once.
  static constexpr int kBatchesInFlight = kConsumers == 3 ? 1 : N > 184 ? 2 : 3;
};

// A batch is what a data warp moves at once: 8 groups of kVectorPixels pixels x 32 channels.
constexpr int kBatchPixels = 8 * kVectorPixels;
constexpr int kBatchChannels = 32;

// Outputs go to memory through a buffer per consumer warp: 8 channels x kStoreColumns columns, rows padded so that
// neither writing fragments nor reading rows conflicts.
constexpr int kStorePitch = kStoreColumns + 8;
static_assert(8 * kStorePitch * 4 == kStoreBytesPerWarp, "the plan counts the store buffers");

template <typename Storage>
struct Sm90Args {
  Plan plan;
  const Storage* x;
  int64_t x_stride_n, x_stride_c, x_stride_h, x_stride_w;
  int in_h, in_w;
  int pixel_groups, batches_per_row;  // of a window row: batches along it, and times channel halves
  int whole_batches;  // x_stride_w == 1, every quad of pixels aligned, channels a multiple of a batch's
  int pair_stores;   // neighbouring outputs of a phase are neighbours in memory, pairs aligned
  int out_h, out_w, stride_h, stride_w;
  const uint4* weight_tiles;
  const float* inv_scale;
  GuardState* guard;  // null: no guard needed (16-bit inputs)
  EpilogueArgs<Storage> epilogue;
  Storage* out;
  Moments* partials;  // or null
};

// The tiles of a block, in order: chunks of neighbouring row tiles of one strip, so that it walks down the image; chunk
// c belongs to block c modulo the grid, so that blocks work side by side and memory sees long runs.
struct TileCursor {
  int chunk, row_tile, row_end;
  int phase, strip, group, sample;

  __device__ __forceinline__ TileCursor(const Plan& plan, int first_chunk) { enter(plan, first_chunk); }

  __device__ __forceinline__ void enter(const Plan& plan, int new_chunk) {
    chunk = new_chunk;
    int rest = chunk;
    strip = rest % plan.num_strips;
    rest /= plan.num_strips;
    const int row_chunk = rest % plan.num_row_chunks;
    rest /= plan.num_row_chunks;
    phase = rest % plan.num_phases;
    rest /= plan.num_phases;
    group = rest % plan.num_groups;
    sample = rest / plan.num_groups;
    row_tile = row_chunk * plan.chunk_row_tiles;
    row_end = min(row_tile + plan.chunk_row_tiles, plan.num_row_tiles);
  }

  __device__ __forceinline__ bool done(const Plan& plan) const { return chunk >= plan.num_chunks; }

  // Is the next tile the one below, whose window continues this one's in the ring?
  __device__ __forceinline__ bool window_continues(const Plan& plan) const {
    return plan.num_ic_blocks == 1 && row_tile + 1 < row_end;
  }

  __device__ __forceinline__ void next(const Plan& plan) {
    if (++row_tile == row_end) enter(plan, chunk + gridDim.x);
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
  __device__ __forceinline__ void advance(int count, int size) {
    slot += count;
    while (slot >= size) {
      slot -= size;
      parity ^= 1;
    }
  }
};

struct Shared {
  uint32_t ring, weights, stores;
  uint32_t row_full, row_empty, weight_full, weight_empty;  // arrays of 8-byte barriers
};

template <typename Storage>
__device__ __forceinline__ Shared shared_layout(const Sm90Args<Storage>& args, uint32_t base) {
  Shared s;
  s.ring = (base + 1023u) & ~1023u;
  s.weights = s.ring + args.plan.ring_bytes;
  s.stores = s.weights + args.plan.weight_stages * args.plan.blocks_per_sweep * kTapBytes;
  s.row_full = s.stores + args.plan.num_consumers * 4 * kStoreBytesPerWarp;
  s.row_empty = s.row_full + 8 * kMaxRingRows;
  s.weight_full = s.row_empty + 8 * kMaxRingRows;
  s.weight_empty = s.weight_full + 8 * kMaxWeightStages;
  return s;
}

// ---- Producer of pixel rows ------------------------------------------------------------------------------------

// Walks the batches of one data warp: rows of windows in ring order, batches of a row in order, every
// kDataWarps-th batch of the whole sequence.
template <typename Storage>
struct BatchWalk {
  const Sm90Args<Storage>& args;
  TileCursor at;
  int sweeps_left;  // sweeps that will load this window again (only with several ic blocks)
  int ic_block;
  int row, ih, iw;         // row of the window; input row, and column of the window's first pixel
  const Storage* row_base; // the first channel of the ic block at input row ih, column iw: maybe outside x
  int batch;
  RingCursor slot;

  __device__ __forceinline__ BatchWalk(const Sm90Args<Storage>& a, int first)
      : args(a), at(a.plan, blockIdx.x), ic_block(0), batch(0) {
    sweeps_left = reloading_sweeps();
    enter_window(0);
    step(first);
  }

  __device__ __forceinline__ bool done() const { return at.done(args.plan); }

  __device__ __forceinline__ int reloading_sweeps() const {
    return args.plan.num_ic_blocks > 1 ? args.plan.num_sweeps - 1 : 0;
  }

  __device__ __forceinline__ void enter_window(int first_row) {
    const Phase& phase = args.plan.phases[at.phase];
    row = first_row;
    ih = at.row_tile * args.plan.rows_per_tile + phase.row_offset + row;
    iw = at.strip * args.plan.tile_w + phase.col_offset;
    const int64_t channel = static_cast<int64_t>(at.group) * args.plan.in_channels_per_group + ic_block * kBlockIC;
    row_base = args.x + at.sample * args.x_stride_n + channel * args.x_stride_c + ih * args.x_stride_h + iw * args.x_stride_w;
  }

  __device__ __forceinline__ void step(int count) {
    batch += count;
    while (batch >= args.batches_per_row && !done()) {
      batch -= args.batches_per_row;
      slot.next(args.plan.ring_rows);
      ++row;
      ++ih;
      row_base += args.x_stride_h;
      if (row == args.plan.rows_per_tile + args.plan.span_h) next_window();
    }
  }

  __device__ __forceinline__ void next_window() {
    int first_row = 0;
    if (++ic_block == args.plan.num_ic_blocks) {
      ic_block = 0;
      if (sweeps_left-- == 0) {
        sweeps_left = reloading_sweeps();
        if (at.window_continues(args.plan)) first_row = args.plan.span_h;
        at.next(args.plan);
        if (done()) return;
      }
    }
    enter_window(first_row);
  }
};

// Where a thread's part of a batch goes.
struct BatchPlace {
  int pixel;  // of the ring; -1: nothing of this thread
  int chunk;  // 8 channels: 16 bytes of the pixel's row
  int slot;   // ring row; -1: no batch
  uint32_t parity;
  bool zero;  // wholly outside the image
};

// Loads 8 channels x kVectorPixels pixels, zeros where there is no input. kWhole: pixels come as aligned vectors and
// every batch has all its channels.
template <bool kWhole, typename Storage>
__device__ __forceinline__ BatchPlace load_batch(const Sm90Args<Storage>& args, const BatchWalk<Storage>& walk, int lane,
                                                 Storage (&values)[8][kVectorPixels]) {
  using Vector = typename std::conditional<sizeof(Storage) == 4, uint4, uint2>::type;
  static_assert(sizeof(Vector) == sizeof(Storage) * kVectorPixels, "a vector holds one quad of pixels");
  const int channel_group = walk.batch >= args.pixel_groups ? 1 : 0;
  const int pixel_group = walk.batch - channel_group * args.pixel_groups;
  // 8 consecutive lanes take 2 quads x 4 chunks, so that their 16-byte stores fall into different banks; a warp's
  // loads of one channel are 8 quads in a row.
  const int quad = (lane & 1) + 2 * (lane >> 3);
  const int col = pixel_group * kBatchPixels + quad * kVectorPixels;
  const int iw = walk.iw + col;
  BatchPlace place;
  place.slot = walk.slot.slot;
  place.parity = walk.slot.parity;
  place.pixel = col < args.plan.pitch ? walk.slot.slot * args.plan.pitch + col : -1;
  place.chunk = channel_group * 4 + ((lane >> 1) & 3);
  place.zero = walk.ih < 0 || walk.ih >= args.in_h;
  const bool inside = !place.zero && place.pixel >= 0 && iw > -kVectorPixels && iw < args.in_w;
  if constexpr (kWhole) {
    // 64 channels lie within 32-bit offsets (the launcher checks), and x_stride_w is 1.
    const Storage* from = walk.row_base + (place.chunk * 8 * static_cast<int>(args.x_stride_c) + col);
    if (__all_sync(0xFFFFFFFFu, inside)) {
#pragma unroll
      for (int k = 0; k < 8; ++k, from += args.x_stride_c)
        *reinterpret_cast<Vector*>(values[k]) = __ldg(reinterpret_cast<const Vector*>(from));
    } else {
#pragma unroll
      for (int k = 0; k < 8; ++k, from += args.x_stride_c) {
        Vector vector = {};
        if (inside) vector = __ldg(reinterpret_cast<const Vector*>(from));
        *reinterpret_cast<Vector*>(values[k]) = vector;
      }
    }
  } else {
    const int channels_left = args.plan.in_channels_per_group - (walk.ic_block * kBlockIC + place.chunk * 8);
    const Storage* from = walk.row_base + place.chunk * 8 * args.x_stride_c + col * args.x_stride_w;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
#pragma unroll
      for (int j = 0; j < kVectorPixels; ++j) {
        const bool valid = inside && k < channels_left && iw + j >= 0 && iw + j < args.in_w;
        values[k][j] = valid ? from[k * args.x_stride_c + j * args.x_stride_w] : static_cast<Storage>(0.0f);
      }
    }
  }
  return place;
}

// Raises the guard where fp16 cannot hold these values to TF32's accuracy: overflow, infinity or NaN anywhere, or all
// of a warp's batch so small, and not zero, that fp16's subnormals would show. `largest` is of the scaled values.
__device__ __forceinline__ void guard_range(__half2 largest, const float (&values)[8][kVectorPixels],
                                            GuardState* guard, int lane) {
  const float magnitude = __half2float(__hmax_nan(__low2half(largest), __high2half(largest)));
  constexpr float kSmallest = 0.0625f;  // 2^-12 in the input
  bool raise = __any_sync(0xFFFFFFFFu, !(magnitude <= 65504.0f));
  if (!raise && __all_sync(0xFFFFFFFFu, magnitude < kSmallest)) {
    uint32_t bits = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k)
#pragma unroll
      for (int j = 0; j < kVectorPixels; ++j) bits |= __float_as_uint(values[k][j]) << 1;
    raise = __any_sync(0xFFFFFFFFu, bits != 0);
  }
  if (raise && lane == 0) guard->out_of_range = 1;
}

// Rounds to 16 bits and packs the channels of a pixel: pixels[j] is what goes to shared memory.
template <typename Storage>
__device__ __forceinline__ void convert_batch(const Sm90Args<Storage>& args, bool zero, int lane,
                                              const Storage (&values)[8][kVectorPixels], uint4 (&pixels)[kVectorPixels]) {
  __half2 largest = __floats2half2_rn(0.0f, 0.0f);
#pragma unroll
  for (int j = 0; j < kVectorPixels; ++j) {
    uint32_t packed[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if constexpr (sizeof(Storage) == 4) {
        packed[k] = pack_pair(values[2 * k][j] * kInputScale, values[2 * k + 1][j] * kInputScale);
        largest = __hmax2_nan(largest, __habs2(*reinterpret_cast<const __half2*>(&packed[k])));
      } else {
        packed[k] = pack_pair(values[2 * k][j], values[2 * k + 1][j]);
      }
    }
    pixels[j] = make_uint4(packed[0], packed[1], packed[2], packed[3]);
  }
  if constexpr (sizeof(Storage) == 4) {
    if (!zero) guard_range(largest, values, args.guard, lane);
  }
}

__device__ __forceinline__ void store_pixels(uint32_t ring, int pixel, int chunk, const uint4 (&pixels)[kVectorPixels]) {
  const uint32_t base = ring + static_cast<uint32_t>(pixel) * kPixelBytes;
  const uint32_t swizzled = static_cast<uint32_t>(chunk ^ (pixel & 4));  // pixel is a multiple of 4
#pragma unroll
  for (uint32_t j = 0; j < kVectorPixels; ++j)
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(base + j * kPixelBytes + ((swizzled ^ j) << 4)),
                 "r"(pixels[j].x), "r"(pixels[j].y), "r"(pixels[j].z), "r"(pixels[j].w)
                 : "memory");
}

// Waits for the batch's row to be free, stores it, and reports.
template <typename Storage>
__device__ __forceinline__ void store_batch(const Sm90Args<Storage>& args, const Shared& shared, const BatchPlace& place,
                                            const uint4 (&pixels)[kVectorPixels], int lane) {
  mbarrier_wait(shared.row_empty + 8 * place.slot, place.parity ^ 1);
  if (place.pixel >= 0) {
    store_pixels(shared.ring, place.pixel, place.chunk, pixels);
    if (place.slot < args.plan.segment_rows - 1)
      store_pixels(shared.ring, place.pixel + args.plan.ring_rows * args.plan.pitch, place.chunk, pixels);
  }
  // NOTE: the fence towards wgmma's proxy stands with the readers, after they have waited. Here it would also wait for
  // the loads under way.
  __syncwarp();
  if (lane == 0) mbarrier_arrive(shared.row_full + 8 * place.slot);
}

template <int kDataWarps, int kSets, bool kWhole, typename Storage>
__device__ __forceinline__ void produce_rows(const Sm90Args<Storage>& args, const Shared& shared, int warp, int lane) {
  BatchWalk<Storage> walk(args, warp);
  Storage values[kSets][8][kVectorPixels];
  if constexpr (kSets == 1) {
    for (; !walk.done(); walk.step(kDataWarps)) {
      const BatchPlace place = load_batch<kWhole>(args, walk, lane, values[0]);
      uint4 pixels[kVectorPixels];
      convert_batch(args, place.zero, lane, values[0], pixels);
      store_batch(args, shared, place, pixels, lane);
    }
  } else {
    BatchPlace places[kSets];
#pragma unroll
    for (int i = 0; i < kSets; ++i) {
      places[i].slot = -1;
      if (!walk.done()) places[i] = load_batch<kWhole>(args, walk, lane, values[i]);
      walk.step(kDataWarps);
    }
    for (;;) {
#pragma unroll
      for (int i = 0; i < kSets; ++i) {
        const BatchPlace place = places[i];
        if (place.slot < 0) return;
        uint4 pixels[kVectorPixels];
        convert_batch(args, place.zero, lane, values[i], pixels);
        // The loads that reuse these registers are under way while this batch waits for its row and is stored.
        places[i].slot = -1;
        if (!walk.done()) places[i] = load_batch<kWhole>(args, walk, lane, values[i]);
        walk.step(kDataWarps);
        store_batch(args, shared, place, pixels, lane);
      }
    }
  }
}

// ---- Producer of weight tiles ----------------------------------------------------------------------------------

template <typename Storage>
__device__ __forceinline__ void produce_weights(const Sm90Args<Storage>& args, const Shared& shared) {
  const Plan& plan = args.plan;
  const uint32_t stage_bytes = plan.blocks_per_sweep * kTapBytes;
  const char* tiles = reinterpret_cast<const char*>(args.weight_tiles);
  RingCursor stage;
  for (TileCursor at(plan, blockIdx.x); !at.done(plan); at.next(plan)) {
    const Phase& phase = plan.phases[at.phase];
    int count = plan.num_sweeps * plan.num_ic_blocks * phase.taps_h * phase.taps_w;
    int64_t first = phase.weight_base + static_cast<int64_t>(at.group) * count;
    if (plan.resident_weights) {
      first = 0;
      count = plan.num_weight_tiles;
    }
    for (int i = 0; i < count; ++i) {
      mbarrier_wait(shared.weight_empty + 8 * stage.slot, stage.parity ^ 1);
      const uint32_t full = shared.weight_full + 8 * stage.slot;
      mbarrier_arrive_expect_bytes(full, stage_bytes);
      bulk_load(shared.weights + stage.slot * stage_bytes, tiles + (first + i) * stage_bytes, stage_bytes, full);
      stage.next(plan.weight_stages);
    }
    if (plan.resident_weights) return;  // the first tile asked for all of them
  }
}

// ---- Consumers -------------------------------------------------------------------------------------------------

template <typename Storage>
__device__ __forceinline__ void store_pair(Storage* at, float2 pair) {
  if constexpr (sizeof(Storage) == 4) {
    *reinterpret_cast<float2*>(at) = pair;
  } else {
    Storage values[2] = {static_cast<Storage>(pair.x), static_cast<Storage>(pair.y)};
    *reinterpret_cast<uint32_t*>(at) = *reinterpret_cast<uint32_t*>(values);
  }
}

// What of a segment is output: the rest of its columns is between rows, or beyond the image.
struct SegmentExtent {
  int rows, cols, pitch;

  // 3: both outputs at `column` and the next exist, 1: the first does, 0: none. `column` is even, so is the pitch.
  __device__ __forceinline__ int pair_at(int column, int* row, int* col) const {
    *row = column / pitch;
    *col = column - *row * pitch;
    if (*row >= rows || *col >= cols) return 0;
    return *col + 1 < cols ? 3 : 1;
  }
};

// Count, mean and squared deviations of one channel's valid outputs in a segment, which a quad of lanes holds.
// Bit 2j + e of `valid` tells whether value[4j + e] counts. Mean first, then deviations from it: no cancellation.
template <int N>
using ColumnMask = typename std::conditional<(N > 128), uint64_t, uint32_t>::type;  // two bits for eight columns

template <int N>
__device__ __forceinline__ Moments segment_moments(const float* values, ColumnMask<N> valid, int count) {
  Moments result{static_cast<float>(count), 0.0f, 0.0f};
#pragma unroll
  for (int round = 0; round < 2; ++round) {
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < N / 8; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const float d = values[4 * j + e] - result.mean;
        if (valid >> (2 * j + e) & 1) sum += round == 0 ? d : d * d;
      }
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
    sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
    if (round == 0) {
      result.mean = count > 0 ? sum / result.count : 0.0f;
    } else {
      result.m2 = sum;
    }
  }
  return result;
}

// Bias, element-wise chain, moments and stores of one warpgroup's 64 channels x one segment.
template <int N, typename Storage>
__device__ __forceinline__ void finish_segment(const Sm90Args<Storage>& args, const Shared& shared, const TileCursor& at,
                                               int channel0, int segment, float (&acc)[N / 2]) {
  const Plan& plan = args.plan;
  const int first_row = at.row_tile * plan.rows_per_tile + segment * plan.segment_rows;
  const Phase& phase = plan.phases[at.phase];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const SegmentExtent extent{max(0, min(plan.segment_rows, phase.out_count_h - first_row)),
                             max(0, min(plan.tile_w, phase.out_count_w - at.strip * plan.tile_w)), plan.pitch};
  const int padded = plan.num_sweeps * plan.blocks_per_sweep * kBlockOC;
  const int num_channels = plan.num_groups * plan.out_channels_per_group;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int in_group = channel0 + warp * 16 + lane / 4 + half * 8;
    const bool real = in_group < plan.out_channels_per_group;
    const int channel = at.group * plan.out_channels_per_group + (real ? in_group : 0);
    const float inv_scale = args.inv_scale[at.group * padded + in_group];
    const float bias = channel_bias<float>(args.epilogue, channel);
#pragma unroll
    for (int j = 0; j < N / 8; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& value = acc[4 * j + 2 * half + e];
        value = Epilogue::apply<float, Storage>(value * inv_scale + bias, args.epilogue, channel);
      }
  }
  if (args.partials != nullptr) {
    ColumnMask<N> valid = 0;
#pragma unroll
    for (int j = 0; j < N / 8; ++j) {
      int row, col;
      valid |= static_cast<ColumnMask<N>>(extent.pair_at(8 * j + 2 * (lane % 4), &row, &col)) << (2 * j);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Moments moments = segment_moments<N>(acc + 2 * half, valid, extent.rows * extent.cols);
      const int in_group = channel0 + warp * 16 + lane / 4 + half * 8;
      if (lane % 4 == 0 && in_group < plan.out_channels_per_group) {
        // The plan keeps this below 2^31.
        const int tile = (at.strip * plan.num_phases + at.phase) * plan.num_row_tiles + at.row_tile;
        const int entry = (at.sample * static_cast<int>(plan.partials_per_sample()) + tile * plan.num_segments + segment) *
                              num_channels + at.group * plan.out_channels_per_group + in_group;
        args.partials[entry] = moments;
      }
    }
  }

  // Through the warp's buffer: fragments in, rows of one channel out, so that stores cover whole sectors.
  const uint32_t buffer = shared.stores + (threadIdx.x / 32) * kStoreBytesPerWarp;
  const uint32_t write_at = buffer + ((lane / 4) * kStorePitch + 2 * (lane % 4)) * 4;
  // A reading lane takes a pair of columns of one channel: half a warp a row.
  constexpr int kPairs = kStoreColumns / 2, kChannelsAtOnce = 32 / kPairs;
  const int lane_channel = lane / kPairs, lane_column = 2 * (lane % kPairs);
  const uint32_t read_at = buffer + (lane_channel * kStorePitch + lane_column) * 4;
  const int64_t plane = static_cast<int64_t>(args.out_h) * args.out_w;
  const int first_channel = channel0 + warp * 16;
  Storage* tile_out = args.out + (at.sample * static_cast<int64_t>(num_channels) +
                                  at.group * plan.out_channels_per_group + first_channel + lane_channel) * plane +
                      (static_cast<int64_t>(first_row) * args.stride_h + phase.out_first_h) * args.out_w +
                      static_cast<int64_t>(at.strip) * plan.tile_w * args.stride_w + phase.out_first_w;
  const int channels_left = plan.out_channels_per_group - first_channel - lane_channel;
  constexpr int kBlocks = kStoreColumns / 8, kRounds = 8 / kChannelsAtOnce;
#pragma unroll
  for (int j0 = 0; j0 < N / 8; j0 += kBlocks) {
    int row, col;
    int pair = extent.pair_at(8 * j0 + lane_column, &row, &col);
    if (8 * j0 + lane_column >= N) pair = 0;
    Storage* to = tile_out + static_cast<int64_t>(row) * args.stride_h * args.out_w + static_cast<int64_t>(col) * args.stride_w;
    const bool simple = args.pair_stores && __all_sync(0xFFFFFFFFu, pair != 1 && channels_left >= 16 - lane_channel);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      __syncwarp();
#pragma unroll
      for (int j = j0; j < j0 + kBlocks && j < N / 8; ++j)
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(write_at + (j - j0) * 32), "f"(acc[4 * j + 2 * half]),
                     "f"(acc[4 * j + 2 * half + 1])
                     : "memory");
      __syncwarp();
      float2 values[kRounds];
#pragma unroll
      for (int c = 0; c < kRounds; ++c)
        asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                     : "=f"(values[c].x), "=f"(values[c].y)
                     : "r"(read_at + c * kChannelsAtOnce * kStorePitch * 4));
#pragma unroll
      for (int c = 0; c < kRounds; ++c, to += kChannelsAtOnce * plane) {
        if (simple) {
          if (pair != 0) store_pair(to, values[c]);
        } else if (half * 8 + c * kChannelsAtOnce < channels_left) {
          if (pair != 0) to[0] = static_cast<Storage>(values[c].x);
          if (pair == 3) to[args.stride_w] = static_cast<Storage>(values[c].y);
        }
      }
    }
  }
}

// One tap: kSteps products of 16 channels, committed as one group.
template <int N, int kSteps, bool kBFloat16>
__device__ __forceinline__ void multiply_tap(float (&acc)[N / 2], uint64_t a, uint64_t b) {
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kSteps; ++k)
    Wgmma<N>::template multiply<kBFloat16>(acc, a + k * kDescriptorStepK16, b + k * kDescriptorStepK16);
  wgmma_commit();
}

template <int N, typename Storage>
__device__ __forceinline__ void consume(const Sm90Args<Storage>& args, const Shared& shared, int warpgroup) {
  constexpr bool kBFloat16 = std::is_same<Storage, __nv_bfloat16>::value;
  const Plan& plan = args.plan;
  const bool elected = threadIdx.x % 32 == 0;
  const uint64_t weights_descriptor =
      matrix_descriptor(shared.weights + warpgroup % plan.blocks_per_sweep * kTapBytes);
  const uint32_t stage_step = plan.blocks_per_sweep * kTapBytes >> 4;  // of descriptors, in 16 bytes
  const uint32_t tap_descriptor_step = plan.tap_step_w * kPixelBytes >> 4;
  const int segment = warpgroup / plan.blocks_per_sweep;
  const int row_offset = segment * plan.segment_rows;
  RingCursor base, stage;  // first row of the window; next weight stage

  for (TileCursor at(plan, blockIdx.x); !at.done(plan); at.next(plan)) {
    const Phase& phase = plan.phases[at.phase];
    const bool continues = at.window_continues(plan);
    if (plan.resident_weights) {  // stages stay full once loaded: only the slot matters
      stage.slot = phase.weight_base + at.group * plan.num_sweeps * plan.num_ic_blocks * phase.taps_h * phase.taps_w;
      stage.parity = 0;
    }
    for (int sweep = 0; sweep < plan.num_sweeps; ++sweep) {
      float acc[N / 2];
#pragma unroll
      for (int i = 0; i < N / 2; ++i) acc[i] = 0.0f;
      int ic_block = 0;
      do {
        const int k_steps = min(4, (plan.in_channels_per_group - ic_block * kBlockIC + 15) / 16);
        int rows_ready = row_offset, previous = -1;
        RingCursor ready = base;
        ready.advance(row_offset, plan.ring_rows);
        RingCursor top = ready;  // first row of the segment under the current row of taps
        int tap_h = 0;
        do {
          const int needed = row_offset + tap_h * plan.tap_step_h + plan.segment_rows;
          for (; rows_ready < needed; ++rows_ready) {
            mbarrier_wait(shared.row_full + 8 * ready.slot, ready.parity);
            ready.next(plan.ring_rows);
          }
          fence_async_proxy();  // the rows were written by ordinary stores
          uint64_t b = matrix_descriptor(shared.ring + (top.slot * plan.pitch + phase.col_shift) * kPixelBytes);
          int tap_w = 0;
          do {
            mbarrier_wait(shared.weight_full + 8 * stage.slot, stage.parity);
            const uint64_t a = weights_descriptor + static_cast<uint32_t>(stage.slot) * stage_step;
            if (k_steps == 4) {  // straight-line code each: the commit then rides on the last product
              multiply_tap<N, 4, kBFloat16>(acc, a, b);
            } else if (k_steps == 3) {
              multiply_tap<N, 3, kBFloat16>(acc, a, b);
            } else if (k_steps == 2) {
              multiply_tap<N, 2, kBFloat16>(acc, a, b);
            } else {
              multiply_tap<N, 1, kBFloat16>(acc, a, b);
            }
            // The tap before this one is done with its stage when at most this one is in flight.
            wgmma_wait<1>();
            if (previous >= 0 && elected) mbarrier_arrive(shared.weight_empty + 8 * previous);
            previous = plan.resident_weights ? -1 : stage.slot;
            stage.next(plan.weight_stages);
            if (plan.resident_weights) stage.parity = 0;
            b += tap_descriptor_step;
          } while (++tap_w < phase.taps_w);
          top.advance(plan.tap_step_h, plan.ring_rows);
        } while (++tap_h < phase.taps_h);
        wgmma_wait<0>();
        if (previous >= 0 && elected) mbarrier_arrive(shared.weight_empty + 8 * previous);
        if (plan.num_ic_blocks > 1 || sweep == plan.num_sweeps - 1) {
          const int released = continues ? plan.rows_per_tile : plan.rows_per_tile + plan.span_h;
          RingCursor row = base;
          for (int i = 0; i < released; ++i) {
            if (elected) mbarrier_arrive(shared.row_empty + 8 * row.slot);
            row.next(plan.ring_rows);
          }
          base = row;
        }
      } while (++ic_block < plan.num_ic_blocks);
      pin_registers(acc);
      int chunk = at.chunk;  // worked out anew, so that its place takes no registers while multiplying
      asm volatile("" : "+r"(chunk));
      TileCursor place(plan, chunk);
      place.row_tile = at.row_tile;
      finish_segment<N, Storage>(args, shared, place,
                                 (sweep * plan.blocks_per_sweep + warpgroup % plan.blocks_per_sweep) * kBlockOC, segment, acc);
    }
  }
}

template <int kConsumers, int N, typename Storage>
__global__ void __launch_bounds__(Sm90Config<kConsumers, N>::kThreads, 1)
    conv_transpose_sm90(const __grid_constant__ Sm90Args<Storage> args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Config = Sm90Config<kConsumers, N>;
  extern __shared__ __align__(1024) char storage[];
  const Plan& plan = args.plan;
  const Shared shared = shared_layout(args, smem_address(storage));
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  // Pixels behind the last row are read, as zeros or into columns that are dropped, but never written.
  for (uint32_t i = threadIdx.x * 16; i < static_cast<uint32_t>(plan.ring_bytes); i += Config::kThreads * 16)
    asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(shared.ring + i), "r"(0) : "memory");
  fence_async_proxy();
  if (threadIdx.x == 0) {
    for (int i = 0; i < plan.ring_rows; ++i) {
      mbarrier_init(shared.row_full + 8 * i, args.batches_per_row);
      mbarrier_init(shared.row_empty + 8 * i, Config::kConsumerWarps);
    }
    for (int i = 0; i < plan.weight_stages; ++i) {
      mbarrier_init(shared.weight_full + 8 * i, 1);
      mbarrier_init(shared.weight_empty + 8 * i, Config::kConsumerWarps);
    }
    fence_barrier_init();
  }
  __syncthreads();

  const int warpgroup = threadIdx.x / 128;
  if (warpgroup >= kConsumers) {
    set_registers<Config::kLaunchRegisters, Config::kProducerRegisters>();
    const int producer = warp - Config::kConsumerWarps;
    if (producer < Config::kDataWarps) {
      if (args.whole_batches) {
        produce_rows<Config::kDataWarps, Config::kBatchesInFlight, true>(args, shared, producer, lane);
      } else {
        produce_rows<Config::kDataWarps, 1, false>(args, shared, producer, lane);
      }
    } else if (lane == 0) {
      produce_weights(args, shared);
    }
  } else {
    set_registers<Config::kLaunchRegisters, Config::kConsumerRegisters>();
    consume<N, Storage>(args, shared, warpgroup);
  }
#endif
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tconv
