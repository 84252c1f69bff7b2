// Producers of the Hopper convolution: data warps load input values (kVectorPixels pixels x 8 channels a thread),
// convert them and store them as pixel rows; one warp streams weight tiles by bulk copy.
#pragma once

#include <type_traits>

#include "conv_transpose_hopper_args.cuh"
#ifdef TCONV_MULTIPLIES_ZEROS
#include "finite_inputs.cuh"
#endif
#ifdef TCONV_PAIRS_ROWS
#include "row_pairs_source.cuh"
#endif

namespace tconv {
namespace cuda {
namespace hopper {

// Which part of a batch's half is this thread's: 8 consecutive lanes take 2 quads x 4 chunks of 8 channels, so that
// their 16-byte stores fall into different banks; a warp's loads of one channel are 8 quads in a row.
__device__ __forceinline__ int lane_quad(int lane) { return (lane & 1) + 2 * (lane >> 3); }
__device__ __forceinline__ int lane_chunk(int lane) { return (lane >> 1) & 3; }

// Walks the batches of one data warp: one in as many as there are data warps.
template <typename Storage>
struct BatchWalk {
  const HopperArgs<Storage>& args;
  TileCursor at;
  int batches;      // of a load: a chunk's line, or where ic blocks follow each other the window of its only tile
  int load;         // of this chunk's window_loads
  int ic_block;     // of the load's first batch; those side by side in the ring take turns
  int batch;        // of the load
  RingCursor ring;  // the batch's place, in batches
  const Storage* channels;  // this lane's first channel in the first half of the chunk's first ic block

  __device__ __forceinline__ BatchWalk(const HopperArgs<Storage>& a, int first)
      : args(a), at(a.plan), ic_block(0), batch(0) {
    enter_chunk();
    step(first);
  }

  __device__ __forceinline__ bool done() const { return at.done(args.plan); }

  __device__ __forceinline__ void enter_chunk() {
    const Plan& plan = args.plan;
    batches = units_below((at.tile_end - at.first_tile) * plan.tile_pixels + plan.reach) * kBatchesPerUnit *
              plan.ring_ic_blocks;
    load = 0;
#ifdef TCONV_WALKS_DEPTH
    channels = args.x;  // which volume, slice and channel, a batch says
#else
#ifdef TCONV_SPLITS_CHANNELS
    const int first = (at.group >> plan.split_bits) * plan.in_channels_per_group + lane_chunk(threadIdx.x % 32) * 8;
#else
    const int first = at.group * plan.in_channels_per_group + lane_chunk(threadIdx.x % 32) * 8;
#endif
    channels = args.x + at.sample * args.x_stride_n + first * args.x_stride_c;
#endif
  }

  __device__ __forceinline__ void step(int count) {
    batch += count;
    ring.slot += count;
    const int ring_batches = args.plan.ring_units * kBatchesPerUnit * args.plan.ring_ic_blocks;
    if (ring.slot >= ring_batches) {
      ring.slot -= ring_batches;
      ring.parity ^= 1;
    }
    while (batch >= batches && !done()) {
      batch -= batches;
      if (args.plan.ring_ic_blocks == 1 && ++ic_block == args.plan.num_ic_blocks) ic_block = 0;
      if (++load == args.plan.window_loads) {
        at.next_chunk(args.plan);
        enter_chunk();
      }
    }
  }
};

// Where a lane's part of a batch comes from: its first pixel in its first channel, half 0.
template <typename Storage>
struct BatchSource {
  const Storage* from;  // not read where it is outside x
  int column;           // of the input
  int channels_left;    // from the lane's first one on
  bool inside;
#ifdef TCONV_WALKS_DEPTH
  int slice, channel;  // of x, that the first tap reads; the lane's first one, of the group's
#endif
#ifdef TCONV_PAIRS_ROWS
  int first_row, first_channel;  // of a pair, maybe above x; the lane's first one, of both rows'
#endif

  __device__ __forceinline__ BatchSource(const BatchWalk<Storage>& walk, int lane) {
    const HopperArgs<Storage>& args = walk.args;
    const Plan& plan = args.plan;
    int batch = walk.batch, ic_block = walk.ic_block;
    if (plan.ring_ic_blocks > 1) {
      batch = static_cast<int>(args.by_ring_ic_blocks.quotient(batch));
      ic_block = walk.batch - batch * plan.ring_ic_blocks;
    }
    const int position = walk.at.first_tile * plan.tile_pixels + batch * kBatchPixels + lane_quad(lane) * kVectorPixels;
    const int line_row = static_cast<int>(args.by_pitch.quotient(position));
    int row = line_row + plan.row_offset, image = 0;
    from = walk.channels;
    if (plan.line_samples > 1) {
      image = static_cast<int>(args.by_image_rows.quotient(line_row));
      row -= image * plan.image_rows;
#ifndef TCONV_WALKS_DEPTH
      from += image * args.x_stride_n;
#endif
    }
    column = position - line_row * plan.pitch + walk.at.strip * plan.tile_w + plan.col_offset;
    channels_left = plan.in_channels_per_group - ic_block * kBlockIC - lane_chunk(lane) * 8;
    inside = walk.at.sample + image < args.batch && row >= 0 && row < args.in_h && column > -kVectorPixels &&
             column < args.in_w;
#ifdef TCONV_WALKS_DEPTH
    const int of_all = walk.at.sample + image, volume = static_cast<int>(args.by_slices.quotient(of_all));
    slice = of_all - volume * static_cast<int>(args.by_slices.divisor) + args.first_slices[walk.at.residue];
    channel = ic_block * kBlockIC + lane_chunk(lane) * 8;
    from += args.volume_offset(volume, walk.at.group);
#else
    if (plan.num_ic_blocks > 1) from += ic_block * (kBlockIC * args.x_stride_c);
#endif
    if (args.whole_batches) {
      from += row * static_cast<int>(args.x_stride_h) + column;
    } else {
      from += row * args.x_stride_h + column * args.x_stride_w;
    }
#ifdef TCONV_PAIRS_ROWS
    first_row = 2 * row - plan.pairs.before;
    first_channel = ic_block * kBlockIC + lane_chunk(lane) * 8;
#endif
  }
};

// Loads 8 channels x kVectorPixels pixels of a half, zeros where there is no input. kWhole: pixels come as aligned
// vectors and a half has all of its channels or none.
template <bool kWhole, typename Args, typename Source, typename Storage>
#ifdef TCONV_PAIRS_ROWS
__device__ __forceinline__ void load_half(const Args& args, const Source& of_pair, int half,
                                          Storage (&values)[8][kVectorPixels]) {
  const Source source = row_of_half(of_pair, args, half);
#else
__device__ __forceinline__ void load_half(const Args& args, const Source& source, int half,
                                          Storage (&values)[8][kVectorPixels]) {
#endif
  using Vector = typename std::conditional<sizeof(Storage) == 4, uint4, uint2>::type;
  static_assert(sizeof(Vector) == sizeof(Storage) * kVectorPixels, "a vector holds one quad of pixels");
#ifdef TCONV_WALKS_DEPTH
  const int channel = source.channel + half * kHalfChannels,
            channels_left = source.channels_left - half * kHalfChannels;
  const int tap = static_cast<int>(args.by_tap_channels.quotient(channel));  // of 8 channels
  const int slice = source.slice + tap * args.tap_slices;
  const bool in_volume = slice >= 0 && slice < args.in_depth;
  const Storage* from = source.from +
                        (channel - tap * static_cast<int>(args.by_tap_channels.divisor)) * args.x_stride_c +
                        slice * args.x_stride_d;
#else
  const Storage* from = source.from + half * (kHalfChannels * args.x_stride_c);
  const int channels_left = source.channels_left - half * kHalfChannels;
#endif
  if constexpr (kWhole) {
#ifdef TCONV_WALKS_DEPTH
    const bool inside = source.inside && channels_left > 0 && in_volume;
#else
    // A channel block may end after its first half: the second then is zeros, not what lies behind the last channel.
    const bool inside = source.inside && channels_left > 0;
#endif
    if (__all_sync(0xFFFFFFFFu, inside)) {
#pragma unroll
      for (int k = 0; k < 8; ++k, from += args.x_stride_c)
        *reinterpret_cast<Vector*>(values[k]) = load_with_neighbours(reinterpret_cast<const Vector*>(from));
    } else {
#pragma unroll
      for (int k = 0; k < 8; ++k, from += args.x_stride_c) {
        Vector vector = {};
        if (inside) vector = load_with_neighbours(reinterpret_cast<const Vector*>(from));
        *reinterpret_cast<Vector*>(values[k]) = vector;
      }
    }
  } else {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
#pragma unroll
      for (int j = 0; j < kVectorPixels; ++j) {
        const bool valid =
#ifdef TCONV_WALKS_DEPTH
            source.inside && in_volume && k < channels_left && source.column + j >= 0 && source.column + j < args.in_w;
#else
            source.inside && k < channels_left && source.column + j >= 0 && source.column + j < args.in_w;
#endif
        values[k][j] = valid ? from[k * args.x_stride_c + j * args.x_stride_w] : static_cast<Storage>(0.0f);
      }
#ifdef TCONV_PAIRS_ROWS
      // Data warps of 16 bits have no registers for the addresses of all channels at once.
      if constexpr (sizeof(Storage) == 2) asm volatile("" : "+l"(from)::"memory");
#endif
    }
  }
}

// Rounds a pixel's channels to 16 bits and packs them. `largest`: pack_scaled_inputs.
template <typename Storage>
__device__ __forceinline__ uint4 convert_pixel(const Storage (&values)[8][kVectorPixels], int j, __half2& largest,
                                               const InputScale& scale) {
  uint32_t packed[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if constexpr (sizeof(Storage) == 4) {
      packed[k] = pack_scaled_inputs(values[2 * k][j], values[2 * k + 1][j], largest, scale.value);
    } else {
      packed[k] = pack_pair(values[2 * k][j], values[2 * k + 1][j]);
    }
  }
  return make_uint4(packed[0], packed[1], packed[2], packed[3]);
}

// Raises the guard where it must be, over pixels that have all been converted.
template <typename Storage>
__device__ __forceinline__ void guard_pixels(const Storage (&values)[8][kVectorPixels], __half2 largest,
                                             GuardState* guard, float smallest_exact = kSmallestExact) {
  if constexpr (sizeof(Storage) == 4) {
    guard_range(largest, guard, smallest_exact, [&](auto&& inspect) {
#pragma unroll
      for (int k = 0; k < 8; ++k)
#pragma unroll
        for (int j = 0; j < kVectorPixels; ++j) inspect(values[k][j]);
    });
  }
#ifdef TCONV_MULTIPLIES_ZEROS
  if constexpr (sizeof(Storage) == 2)
    if (guard != nullptr) guard_finite(values, guard);
#endif
}

// pixels[j] is what goes to shared memory.
template <typename Storage>
__device__ __forceinline__ void convert_half(GuardState* guard, const InputScale& scale,
                                             const Storage (&values)[8][kVectorPixels],
                                             uint4 (&pixels)[kVectorPixels]) {
  __half2 largest = __floats2half2_rn(0.0f, 0.0f);
#pragma unroll
  for (int j = 0; j < kVectorPixels; ++j) pixels[j] = convert_pixel(values, j, largest, scale);
  guard_pixels(values, largest, guard, scale.smallest_exact);
}

__device__ __forceinline__ void store_pixels(uint32_t at, uint32_t first_chunk, const uint4 (&pixels)[kVectorPixels]) {
#pragma unroll
  for (uint32_t j = 0; j < kVectorPixels; ++j)
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at + j * kPixelBytes + ((first_chunk ^ j) << 4)),
                 "r"(pixels[j].x), "r"(pixels[j].y), "r"(pixels[j].z), "r"(pixels[j].w)
                 : "memory");
}

// A batch's place in the ring: pixels from the start of its ic block's part, and that part.
struct BatchPlace {
  int pixel, part;

  template <typename Storage>
  __device__ __forceinline__ BatchPlace(const HopperArgs<Storage>& args, const RingCursor& place)
      : pixel(place.slot), part(0) {
    if (args.plan.ring_ic_blocks > 1) {
      pixel = static_cast<int>(args.by_ring_ic_blocks.quotient(place.slot));
      part = place.slot - pixel * args.plan.ring_ic_blocks;
    }
    pixel *= kBatchPixels;
  }

  __device__ __forceinline__ int unit() const { return pixel / kUnitPixels; }
};

// Stores a half of a batch whose unit is free.
template <typename Storage>
__device__ __forceinline__ void store_half(const HopperArgs<Storage>& args, const Shared& shared,
                                           const BatchPlace& place, int half, int lane,
                                           const uint4 (&pixels)[kVectorPixels]) {
  const int first = place.part * args.plan.ring_block_pixels + place.pixel;
  const uint32_t at = shared.ring + (first + lane_quad(lane) * kVectorPixels) * kPixelBytes;
  // Swizzled: 16-byte chunk c of pixel p lies at c XOR p mod 8.
  const uint32_t chunk = (half * 4 + lane_chunk(lane)) ^ (lane_quad(lane) * kVectorPixels & 4);
  store_pixels(at, chunk, pixels);
  if (place.pixel < args.plan.mirror_pixels)
    store_pixels(at + args.plan.ring_units * (kUnitPixels * kPixelBytes), chunk, pixels);
}

// That the unit was full a lap before follows from its being free: asked for the sake of racecheck, which sees no order
// through others.
__device__ __forceinline__ void await_free(const Shared& shared, const BatchPlace& place, uint32_t parity) {
  mbarrier_wait(shared.unit_empty + 8 * place.unit(), parity ^ 1);
  mbarrier_wait(shared.unit_full + 8 * place.unit(), parity ^ 1);
}

// NOTE: the fence towards wgmma's proxy stands with the readers, after they have waited. Here it would also wait for
// the loads under way. All lanes report: racecheck sees no order through one that speaks for its warp.
__device__ __forceinline__ void report_full(const Shared& shared, const BatchPlace& place) {
  mbarrier_arrive(shared.unit_full + 8 * place.unit());
}

// kSets batches are under way at a time; of one, both halves where registers suffice.
template <int kSets, bool kWhole, typename Storage>
__device__ __forceinline__ void produce_pixels(const HopperArgs<Storage>& args, const Shared& shared, int warp,
                                               int data_warps, int lane) {
  BatchWalk<Storage> walk(args, warp);
  if (walk.done()) return;
  constexpr int kAtOnce = kSets == 2 || (kWhole && sizeof(Storage) == 2) ? 2 : 1;
  Storage values[kAtOnce][8][kVectorPixels];
  uint4 pixels[kVectorPixels];
  const InputScale scale(args.guard);
  if constexpr (kSets == 1) {
    for (; !walk.done(); walk.step(data_warps)) {
      const BatchSource<Storage> source(walk, lane);
      const BatchPlace place(args, walk.ring);
#pragma unroll 1
      for (int half = 0; half < args.channel_halves; half += kAtOnce) {
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
          if (half + i < args.channel_halves) load_half<kWhole>(args, source, half + i, values[i]);
        if (half == 0) await_free(shared, place, walk.ring.parity);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          if (half + i == args.channel_halves) break;
          convert_half(args.guard, scale, values[i], pixels);
          store_half(args, shared, place, half + i, lane, pixels);
        }
      }
      report_full(shared, place);
    }
  } else {
    const bool both = args.channel_halves == 2;
    {
      const BatchSource<Storage> source(walk, lane);
      load_half<kWhole>(args, source, 0, values[0]);
      if (both) load_half<kWhole>(args, source, 1, values[1]);
    }
    for (;;) {
      // The loads that reuse the registers of what is stored here are under way meanwhile.
      const BatchPlace place(args, walk.ring);
      const uint32_t parity = walk.ring.parity;
      walk.step(data_warps);
      const bool more = !walk.done();
      const BatchSource<Storage> source(walk, lane);
      convert_half(args.guard, scale, values[0], pixels);
      if (more) load_half<kWhole>(args, source, 0, values[0]);
      await_free(shared, place, parity);
      store_half(args, shared, place, 0, lane, pixels);
      if (both) {
        convert_half(args.guard, scale, values[1], pixels);
        if (more) load_half<kWhole>(args, source, 1, values[1]);
        store_half(args, shared, place, 1, lane, pixels);
      }
      report_full(shared, place);
      if (!more) return;
    }
  }
}

// ---- Producer of weight tiles ----------------------------------------------------------------------------------

// Resident weights are loaded once, by one thread; otherwise thread `block` fills the ring of that block of the sweep.
template <typename Storage>
__device__ __forceinline__ void produce_weights(const HopperArgs<Storage>& args, const Shared& shared, int block) {
  const Plan& plan = args.plan;
  const char* tiles = reinterpret_cast<const char*>(args.weight_tiles);
  if (plan.resident_weights) {
    for (int i = 0; block == 0 && i < plan.weight_stages; ++i) {
      mbarrier_arrive_expect_bytes(shared.weight_full + 8 * i, kTapBytes);
      bulk_load(shared.weights + i * kTapBytes, tiles + static_cast<int64_t>(i) * kTapBytes, kTapBytes,
                shared.weight_full + 8 * i);
    }
    return;
  }
  const int first_stage = block * plan.ring_stages;
  tiles += block * kTapBytes;
  const int64_t step = plan.blocks_per_sweep * kTapBytes;
  RingCursor stage;
  for (TileCursor at(plan); !at.done(plan); at.next(plan)) {
    const int count = plan.num_sweeps * plan.sweep_tiles;
#ifdef TCONV_WALKS_DEPTH
    const char* from = tiles + static_cast<int64_t>(at.part(plan)) * count * step;
#else
    const char* from = tiles + static_cast<int64_t>(at.group) * count * step;
#endif
    for (int i = 0; i < count; ++i, from += step) {
#ifdef TCONV_SKIPS_TAPS
      if (!has_weights(plan, args.packed.taps, i)) continue;
#endif
      const int slot = first_stage + stage.slot;
      mbarrier_wait(shared.weight_empty + 8 * slot, stage.parity ^ 1);
      mbarrier_wait(shared.weight_full + 8 * slot, stage.parity ^ 1);  // as in await_free
      mbarrier_arrive_expect_bytes(shared.weight_full + 8 * slot, kTapBytes);
      bulk_load(shared.weights + slot * kTapBytes, from, kTapBytes, shared.weight_full + 8 * slot);
      stage.next(plan.ring_stages);
    }
  }
}

}  // namespace hopper
}  // namespace cuda
}  // namespace tconv
