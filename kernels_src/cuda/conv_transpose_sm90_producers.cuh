// Producers of the Hopper convolution: data warps load input values (kVectorPixels pixels x 8 channels a thread), convert
// them and store them as pixel rows; one warp streams weight tiles by bulk copy.
#pragma once

#include <type_traits>

#include "conv_transpose_sm90_args.cuh"

namespace tconv {
namespace cuda {
namespace sm90 {

// Walks the batches of one data warp: every kDataWarps-th of the whole sequence, unit by unit, channel half by half.
template <typename Storage>
struct BatchWalk {
  const Sm90Args<Storage>& args;
  TileCursor at;
  int units;        // of a load: a chunk's line, or with several ic blocks the window of its only tile
  int loads, load;  // of this chunk: one, or one per sweep and ic block
  int ic_block;
  int unit, half;
  int ring_unit;  // `unit` counted over all that the block loads

  __device__ __forceinline__ BatchWalk(const Sm90Args<Storage>& a, int first)
      : args(a), at(a.plan, blockIdx.x), ic_block(0), unit(0), half(0), ring_unit(0) {
    enter_chunk();
    step(first);
  }

  __device__ __forceinline__ bool done() const { return at.done(args.plan); }

  __device__ __forceinline__ void enter_chunk() {
    const Plan& plan = args.plan;
    units = line_units((at.tile_end - at.first_tile) * plan.tile_pixels + plan.reach);
    loads = plan.num_ic_blocks > 1 ? plan.num_ic_blocks * plan.num_sweeps : 1;
    load = 0;
  }

  __device__ __forceinline__ void step(int count) {
    half += count;
    while (half >= args.batches_per_unit && !done()) {
      half -= args.batches_per_unit;
      ++ring_unit;
      if (++unit == units) {
        unit = 0;
        if (++ic_block == args.plan.num_ic_blocks) ic_block = 0;
        if (++load == loads) {
          at.enter(args.plan, at.chunk + gridDim.x);
          enter_chunk();
        }
      }
    }
  }
};

// Which part of a batch is this thread's: 8 consecutive lanes take 2 quads x 4 chunks of 8 channels, so that their 16-byte
// stores fall into different banks; a warp's loads of one channel are 8 quads in a row.
__device__ __forceinline__ int lane_quad(int lane) { return (lane & 1) + 2 * (lane >> 3); }
__device__ __forceinline__ int lane_chunk(int lane) { return (lane >> 1) & 3; }

// Where a batch goes: the ring's unit, counted over all, and the channel half. Negative: no batch.
struct BatchPlace {
  int unit_and_half;
};

// Loads 8 channels x kVectorPixels pixels, zeros where there is no input. kWhole: pixels come as aligned vectors and
// a batch has all of its channels or none.
template <bool kWhole, typename Storage>
__device__ __forceinline__ BatchPlace load_batch(const Sm90Args<Storage>& args, const BatchWalk<Storage>& walk, int lane,
                                                 Storage (&values)[8][kVectorPixels]) {
  using Vector = typename std::conditional<sizeof(Storage) == 4, uint4, uint2>::type;
  static_assert(sizeof(Vector) == sizeof(Storage) * kVectorPixels, "a vector holds one quad of pixels");
  const Phase& phase = args.plan.phases[walk.at.phase];
  const int position =
      walk.at.first_tile * args.plan.tile_pixels + walk.unit * kUnitPixels + lane_quad(lane) * kVectorPixels;
  const int row = static_cast<int>(args.by_pitch.quotient(position));
  const int ih = row + phase.row_offset;
  const int iw = position - row * args.plan.pitch + walk.at.strip * args.plan.tile_w + phase.col_offset;
  const int first_channel = walk.ic_block * kBlockIC + (walk.half * 4 + lane_chunk(lane)) * 8;
  // A channel block may end after its first half: the second then is zeros, not what lies behind the last channel.
  const bool inside = ih >= 0 && ih < args.in_h && iw > -kVectorPixels && iw < args.in_w &&
                      first_channel < args.plan.in_channels_per_group;
  const Storage* from = args.x + walk.at.sample * args.x_stride_n +
                        (static_cast<int64_t>(walk.at.group) * args.plan.in_channels_per_group + first_channel) * args.x_stride_c +
                        ih * args.x_stride_h + iw * args.x_stride_w;  // not read where it is outside x
  if constexpr (kWhole) {
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
    const int channels_left = args.plan.in_channels_per_group - first_channel;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
#pragma unroll
      for (int j = 0; j < kVectorPixels; ++j) {
        const bool valid = inside && k < channels_left && iw + j >= 0 && iw + j < args.in_w;
        values[k][j] = valid ? from[k * args.x_stride_c + j * args.x_stride_w] : static_cast<Storage>(0.0f);
      }
    }
  }
  return {walk.ring_unit * 2 + walk.half};
}

// Rounds to 16 bits and packs the channels of a pixel: pixels[j] is what goes to shared memory.
template <typename Storage>
__device__ __forceinline__ void convert_batch(const Sm90Args<Storage>& args,
                                              const Storage (&values)[8][kVectorPixels], uint4 (&pixels)[kVectorPixels]) {
  __half2 largest = __floats2half2_rn(0.0f, 0.0f);
#pragma unroll
  for (int j = 0; j < kVectorPixels; ++j) {
    uint32_t packed[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if constexpr (sizeof(Storage) == 4) {
        packed[k] = pack_scaled_inputs(values[2 * k][j], values[2 * k + 1][j], largest);
      } else {
        packed[k] = pack_pair(values[2 * k][j], values[2 * k + 1][j]);
      }
    }
    pixels[j] = make_uint4(packed[0], packed[1], packed[2], packed[3]);
  }
  if constexpr (sizeof(Storage) == 4) {
    guard_range(largest, args.guard, [&](auto&& inspect) {
#pragma unroll
      for (int k = 0; k < 8; ++k)
#pragma unroll
        for (int j = 0; j < kVectorPixels; ++j) inspect(values[k][j]);
    });
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

// Waits for the batch's unit to be free, stores it, and reports.
template <typename Storage>
__device__ __forceinline__ void store_batch(const Sm90Args<Storage>& args, const Shared& shared, const BatchPlace& place,
                                            const uint4 (&pixels)[kVectorPixels], int lane) {
  const RingCursor at = ring_position(place.unit_and_half >> 1, args.by_ring_units);
  const int pixel = lane_quad(lane) * kVectorPixels, chunk = (place.unit_and_half & 1) * 4 + lane_chunk(lane);
  mbarrier_wait(shared.unit_empty + 8 * (at.slot / kFreeUnits), at.parity ^ 1);
  store_pixels(shared.ring, at.slot * kUnitPixels + pixel, chunk, pixels);
  if (at.slot < args.plan.mirror_units)
    store_pixels(shared.ring, (args.plan.ring_units + at.slot) * kUnitPixels + pixel, chunk, pixels);
  // NOTE: the fence towards wgmma's proxy stands with the readers, after they have waited. Here it would also wait for
  // the loads under way.
  __syncwarp();
  if (lane == 0) mbarrier_arrive(shared.unit_full + 8 * at.slot);
}

template <int kDataWarps, int kSets, bool kWhole, typename Storage>
__device__ __forceinline__ void produce_pixels(const Sm90Args<Storage>& args, const Shared& shared, int warp, int lane) {
  BatchWalk<Storage> walk(args, warp);
  Storage values[kSets][8][kVectorPixels];
  if constexpr (kSets == 1) {
    for (; !walk.done(); walk.step(kDataWarps)) {
      const BatchPlace place = load_batch<kWhole>(args, walk, lane, values[0]);
      uint4 pixels[kVectorPixels];
      convert_batch(args, values[0], pixels);
      store_batch(args, shared, place, pixels, lane);
    }
  } else {
    BatchPlace places[kSets];
#pragma unroll
    for (int i = 0; i < kSets; ++i) {
      places[i].unit_and_half = -1;
      if (!walk.done()) places[i] = load_batch<kWhole>(args, walk, lane, values[i]);
      walk.step(kDataWarps);
    }
    for (;;) {
#pragma unroll
      for (int i = 0; i < kSets; ++i) {
        const BatchPlace place = places[i];
        if (place.unit_and_half < 0) return;
        uint4 pixels[kVectorPixels];
        convert_batch(args, values[i], pixels);
        // The loads that reuse these registers are under way while this batch waits for its unit and is stored.
        places[i].unit_and_half = -1;
        if (!walk.done()) places[i] = load_batch<kWhole>(args, walk, lane, values[i]);
        walk.step(kDataWarps);
        store_batch(args, shared, place, pixels, lane);
      }
    }
  }
}

// ---- Producer of weight tiles ----------------------------------------------------------------------------------

// Resident weights are loaded once, by one thread; otherwise thread `block` fills the ring of that block of the sweep.
template <typename Storage>
__device__ __forceinline__ void produce_weights(const Sm90Args<Storage>& args, const Shared& shared, int block) {
  const Plan& plan = args.plan;
  const char* tiles = reinterpret_cast<const char*>(args.weight_tiles);
  if (plan.resident_weights) {
    for (int i = 0; block == 0 && i < plan.weight_stages; ++i) {
      mbarrier_arrive_expect_bytes(shared.weight_full + 8 * i, kTapBytes);
      bulk_load(shared.weights + i * kTapBytes, tiles + static_cast<int64_t>(i) * kTapBytes, kTapBytes, shared.weight_full + 8 * i);
    }
    return;
  }
  const int first_stage = block * plan.ring_stages;
  tiles += block * kTapBytes;
  const int64_t step = plan.blocks_per_sweep * kTapBytes;
  RingCursor stage;
  for (TileCursor at(plan, blockIdx.x); !at.done(plan); at.next(plan)) {
    const Phase& phase = plan.phases[at.phase];
    const int count = plan.num_sweeps * plan.num_ic_blocks * phase.taps_h * phase.taps_w;
    const char* from = tiles + (phase.weight_base + static_cast<int64_t>(at.group) * count) * step;
    for (int i = 0; i < count; ++i, from += step) {
      const int slot = first_stage + stage.slot;
      mbarrier_wait(shared.weight_empty + 8 * slot, stage.parity ^ 1);
      mbarrier_arrive_expect_bytes(shared.weight_full + 8 * slot, kTapBytes);
      bulk_load(shared.weights + slot * kTapBytes, from, kTapBytes, shared.weight_full + 8 * slot);
      stage.next(plan.ring_stages);
    }
  }
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tconv
