// What the roles of the kernel that holds a sample's outputs share: arguments, the walk over samples, shared memory.
#pragma once

#include "../epilogue.h"
#include "../moments.h"
#include "conv_group_norm_held_types.h"
#include "conv_transpose_sm90_args.cuh"

namespace tconv {
namespace cuda {
namespace held {

using namespace tconv::held;
using tconv::sm90::kTapBytes;
using tconv::sm90::kVectorPixels;

// Registers of a thread: what the others do not need of the 65536 goes to consumers, for kN / 2 accumulators.
constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
constexpr int kConsumerRegisters = 136;
constexpr int kOtherRegisters = (kThreads * kLaunchRegisters - 128 * kSegments * kConsumerRegisters) / 128 / 8 * 8;
static_assert(kProducerWarps + 1 == 4, "setmaxnreg is a warpgroup's");
static_assert(kPairs % 8 == 4, "rows of fragments spread over the banks");

// What blocks tell each other through global memory, written and read as words of 8 bytes, so that each is there or not. Not
// there: all bits set, which no result has.
struct alignas(8) Entry {  // of a block's outputs in a group: mean, and sum of squared deviations from it
  float mean, m2;
};
struct alignas(16) Statistics {  // of a group in a sample: its mean, as a sum of two numbers; 1 / standard deviation
  float mean, rest, rstd, unused;
};
static_assert(sizeof(Moments) == 16 && sizeof(Entry) == 8, "the plan counts them");

template <typename Storage>
struct Args {
  Plan plan;
  FastDivisor by_pitch;
  const Storage* x;
  int64_t x_stride_n, x_stride_c, x_stride_h, x_stride_w;
  int batch, in_h, in_w;
  int whole_quads;  // quads of pixels are aligned vectors, in_channels a multiple of 8, offsets in a sample's plane below 2^31
  int prefetch_bytes;  // by a lane, of a sample that lies in one piece; else 0
  int pair_stores;  // pairs of neighbouring outputs are aligned
  int out_h, out_w;
  const uint4* weight_tiles;
  const float* inv_scale;
  GuardState* guard;
  EpilogueArgs<Storage> epilogue;
  Storage* out;
  // GroupNorm.
  int num_groups, channels_per_group;
  float inverse_values;  // 1 / (channels and pixels of a group)
  float eps;
  const Storage* norm_weight;  // [out_channels] or null
  const Storage* norm_bias;
  Entry* entries;          // [sample][group][block of the sample], none there before the launch
  Statistics* statistics;  // [sample][group], the same
};

// The same value, unknown to the compiler: what follows from it is worked out here, and takes no registers while multiplying.
__device__ __forceinline__ int opaque(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

// A block's part of the samples: as many samples are held at once as the grid has room for; a block takes every so many-th.
struct Place {
  int block, strip, tile;  // of the sample
  int first_sample, sample_step;

  __device__ __forceinline__ explicit Place(const Plan& plan) {
    const int blocks = plan.blocks_per_sample();
    first_sample = blockIdx.x / blocks;
    block = blockIdx.x - first_sample * blocks;
    sample_step = gridDim.x / blocks;
    strip = block / plan.num_tiles;
    tile = block - strip * plan.num_tiles;
  }
};

// Which pixels of a segment from `position` of the line on are outputs: where a pair of them lies.
struct PairPlace {
  int row, col;  // of the sample, of the strip
  bool first, second;

  template <typename Storage>
  __device__ __forceinline__ PairPlace(const Args<Storage>& args, const Place& place, int position) {
    const Plan& plan = args.plan;
    row = static_cast<int>(args.by_pitch.quotient(position));
    col = position - row * plan.pitch;
    const int columns = row < args.out_h ? min(plan.tile_w, args.out_w - place.strip * plan.tile_w) : 0;
    first = col < columns;
    second = col + 1 < columns;
  }
};

struct Shared {
  uint32_t weights, ring, high, third, moments, affine, parameters, counts;
  uint32_t weights_full, chunk_full, chunk_empty, moments_full, affine_full;  // 8-byte barriers; those of chunks are arrays

  __device__ __forceinline__ Shared(const Plan& plan, uint32_t base) {
    weights = base;  // a multiple of 1024
    ring = weights + plan.weight_bytes;
    high = ring + kStages * plan.stage_bytes;
    third = high + kHighBytes;
    moments = third + kThirdBytes;
    affine = moments + kMomentsBytes;
    parameters = affine + kAffineBytes;
    counts = parameters + kParameterBytes;
    weights_full = counts + counts_bytes(plan.blocks_per_sample());
    chunk_full = weights_full + 8;
    chunk_empty = chunk_full + 8 * kStages;
    moments_full = chunk_empty + 8 * kStages;
    affine_full = moments_full + 8;
  }

  // Words of a segment's outputs: of pairs in a channel, and in two channels, `row` of kChannels / 2.
  __device__ __forceinline__ uint32_t high_at(int segment, int channel, int pair) const {
    return high + ((segment * kChannels + channel) * kPairs + pair) * 4;
  }
  __device__ __forceinline__ uint32_t third_at(int segment, int row, int pair) const {
    return third + ((segment * (kChannels / 2) + row) * kPairs + pair) * 4;
  }
};

__device__ __forceinline__ uint32_t load_word(uint32_t at) {
  uint32_t v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at) : "memory");
  return v;
}
__device__ __forceinline__ void store_word(uint32_t at, uint32_t v) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(v) : "memory");
}

// What makes a held difference from the pivot an output.
struct Affine {
  float scale, shift;
};
__device__ __forceinline__ Affine load_affine(uint32_t at) {
  float2 v;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at) : "memory");
  return {v.x, v.y};
}
__device__ __forceinline__ void store_affine(uint32_t at, Affine affine) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(affine.scale), "f"(affine.shift) : "memory");
}

// What outputs are held as differences from: a channel's output where no input is. They are then no larger than what operands in
// 11 bits make of them, and a large bias costs none of their digits.
template <typename Storage>
__device__ __forceinline__ float pivot_of(const Args<Storage>& args, int channel) {
  return Epilogue::apply<float, Storage>(channel_bias<float>(args.epilogue, channel), args.epilogue, channel);
}

}  // namespace held
}  // namespace cuda
}  // namespace tconv
