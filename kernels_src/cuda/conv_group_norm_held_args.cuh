// What the roles of the kernel that holds a sample's outputs share: arguments, the walk over samples, shared memory.
#pragma once

#include "../epilogue.h"
#include "../moments.h"
#include "conv_group_norm_held_gelu.cuh"
#include "conv_group_norm_held_types.h"
#include "conv_transpose_hopper_args.cuh"
#include "group_norm_storage.cuh"

namespace tconv {
namespace cuda {
namespace held {

using namespace tconv::held;
using tconv::hopper::kVectorPixels;

// Registers of a thread: what the others do not need of the 65536 goes to consumers, for kN / 2 accumulators.
constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
constexpr int kConsumerRegisters = 136;
constexpr int kOtherRegisters = (kThreads * kLaunchRegisters - 128 * kSegments * kConsumerRegisters) / 128 / 8 * 8;
static_assert(kProducerWarps + 1 == 4, "setmaxnreg is a warpgroup's");

// What blocks tell each other through global memory, written and read as words of 8 bytes, so that each is there or
// not. Not there: all bits set, which no result has.
struct alignas(8) Entry {  // of a block's outputs in a group: mean, and sum of squared deviations from it
  float mean, m2;
};
struct alignas(16) Statistics {  // of a group in a sample: its mean, as a sum of two numbers; 1 / standard deviation
  float mean, rest, rstd, unused;
};
static_assert(sizeof(Moments) == 16 && sizeof(Entry) == 8, "the plan counts them");

// What the chain's results are as.
template <typename Storage>
using Result = typename std::conditional<sizeof(Storage) == 2, Difference<Storage>, Storage>::type;

template <typename Storage>
struct Args {
  Plan plan;
  FastDivisor by_pitch;
  const Storage* x;
  int64_t x_stride_n, x_stride_c, x_stride_h, x_stride_w;
  int batch, in_h, in_w;
  int samples_at_once;  // that are held, by as many times the plan's blocks
  // Quads of pixels are aligned vectors, in_channels a multiple of 8, offsets in a sample's plane below 2^31.
  int whole_quads;
  int prefetch_bytes;  // by a lane, of a sample that lies in one piece; else 0
  int pair_stores;     // pairs of neighbouring outputs are aligned, and a warp has all of its 16 channels or none
  int out_h, out_w;
  uint32_t plane_bytes;  // of a channel of a sample of out
  const uint4* weight_tiles;
  const float* inv_scale;
  GuardState* guard;
  EpilogueArgs<Result<Storage>> epilogue;
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

// The same value, unknown to the compiler: what follows from it is worked out here, and takes no registers while
// multiplying.
__device__ __forceinline__ int opaque(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

// A thread's number among consumers, who come after the others.
constexpr int kFirstConsumer = 32 * (kProducerWarps + 1);
__device__ __forceinline__ int consumer_thread() { return opaque(threadIdx.x) - kFirstConsumer; }

// A block's part of a sample. It takes every args.samples_at_once-th sample.
struct Place {
  int first_sample;
  int block, strip, tile;  // of the sample

  __device__ __forceinline__ explicit Place(const Plan& plan) {
    const int blocks = plan.blocks_per_sample();
    first_sample = blockIdx.x / blocks;
    block = blockIdx.x - first_sample * blocks;
    tile = block / plan.num_strips;  // strips of the same rows side by side: they share what lies at their edges
    strip = block - tile * plan.num_strips;
  }
};

// Where a pair of pixels from `position` of the line on lies, and which of them are outputs. columns: of the strip.
struct PairPlace {
  int row, col;  // of the sample, of the strip
  bool first, second;

  template <typename Storage>
  __device__ __forceinline__ PairPlace(const Args<Storage>& args, int columns, int position) {
    row = static_cast<int>(args.by_pitch.quotient(position));
    col = position - row * args.plan.pitch;
    first = col < (row < args.out_h ? columns : 0);
    second = col + 1 < (row < args.out_h ? columns : 0);
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

// Two numbers, rounded to a 16-bit type.
template <typename Storage>
__device__ __forceinline__ uint32_t pack_rounded(float a, float b) {
  if constexpr (std::is_same<Storage, __nv_bfloat16>::value) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<const uint32_t*>(&pair);
  } else {
    return pack_pair(a, b);
  }
}

struct Shared {
  uint32_t moments, affine, parameters, place, splits, offsets, units, counts, held, weights, ring;
  // 8-byte barriers; of rings, arrays.
  uint32_t weights_full, weights_empty, chunk_full, chunk_empty, moments_full, affine_full;

  __device__ __forceinline__ Shared(const Plan& plan, uint32_t base) {
    moments = base;
    affine = moments + kMomentsBytes;
    parameters = affine + kAffineBytes;
    place = parameters + kParameterBytes;
    splits = place + kPlaceBytes;
    weights_full = splits + kSplitsBytes;
    weights_empty = weights_full + 8 * kMaxWeightStages;
    chunk_full = weights_empty + 8 * kMaxWeightStages;
    chunk_empty = chunk_full + 8 * kMaxStages;
    moments_full = chunk_empty + 8 * kMaxStages;
    affine_full = moments_full + 8;
    offsets = base + kFixedBytes;
    units = offsets + offsets_bytes(plan.window_quads);
    counts = units + offsets_bytes(plan.window_quads);
    held = base + tables_bytes(plan.blocks_per_sample(), plan.window_quads);
    weights = held + plan.held_bytes;
    ring = weights + plan.num_weight_stages * plan.weight_stage_bytes;
  }

  // The block's turn-th.
  template <typename Storage>
  __device__ __forceinline__ int sample(const Args<Storage>& args, int turn) const {
    return static_cast<int>(load_word(place)) + turn * args.samples_at_once;
  }
  // 16 bytes that nobody reads, one of kSegments * kRows.
  __device__ __forceinline__ uint32_t padding_at(int row, int value_bytes) const {
    return held + (row + 1) * row_bytes(value_bytes) - kPaddingBytes;
  }
  __device__ __forceinline__ uint32_t moments_at(int segment, int channel) const {
    return moments + (segment * kChannels + channel) * kMomentBytes;
  }
  // A channel's scale; its shift is two words on.
  __device__ __forceinline__ uint32_t affine_at(int segment, int channel) const {
    const int row = channel / (2 * kPartner) * kPartner + channel % kPartner;
    return affine + (segment * kRows + row) * 16 + channel / kPartner % 2 * 4;
  }
};

// A row's two scales and two shifts. Volatile, or ptxas loads those of the next row, too, and has no registers for
// them.
__device__ __forceinline__ float4 load_affine(uint32_t at) {
  float4 v;
  asm volatile("ld.volatile.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(at)
               : "memory");
  return v;
}

// What consumers need of a channel, in shared memory: two arrays. By all lanes of a warp.
template <typename Storage>
__device__ __forceinline__ void fill_parameters(const Args<Storage>& args, const Shared& shared, int lane) {
  for (int channel = lane; channel < kChannels; channel += 32) {
    const int real = min(channel, args.plan.out_channels - 1);
    const uint32_t at = shared.parameters + channel * 4;
    store_word(at, __float_as_uint(args.inv_scale[channel]));
    store_word(at + kChannels * 4, __float_as_uint(channel_bias<float>(args.epilogue, real)));
  }
}
struct Parameters {
  float inv_scale, bias;

  __device__ __forceinline__ Parameters(const Shared& shared, int channel) {
    const uint32_t at = shared.parameters + channel * 4;
    inv_scale = __uint_as_float(load_word(at));
    bias = __uint_as_float(load_word(at + kChannels * 4));
  }
};

}  // namespace held
}  // namespace cuda
}  // namespace tconv
