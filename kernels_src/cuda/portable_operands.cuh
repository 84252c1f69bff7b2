// How each numeric mode prepares operands and multiplies one step (16-byte chunks of a pixel, m16n8 tiles).
#pragma once

#include "conv_transpose_portable_config.h"
#include "fp16_containers.cuh"
#include "mma_sync.cuh"
#include "storage.cuh"

namespace tconv {
namespace cuda {

template <Numeric kNumeric>
struct NumericTraits {
  using Storage = float;
};
template <>
struct NumericTraits<Numeric::kFP16> {
  using Storage = __half;
};
template <>
struct NumericTraits<Numeric::kBF16> {
  using Storage = __nv_bfloat16;
};

// Strict fp32: v = high + low * 2^-kLowScaleLog2, high with 11 significant bits, so that
//   v * w = high * high' + high * low' + low * high' + O(2^-22 v w)
// (Ootomo, Yokota, "Recovering single precision accuracy from Tensor Cores while surpassing the FP32 theoretical
// peak performance", 2022). The scale keeps the low part of tiny values above the smallest subnormal.
constexpr int kLowScaleLog2 = 10;

struct SplitValue {
  uint32_t high, low;  // fp32 bit patterns; the tensor core drops the last 13 bits of low, below 2^-23 of v
};

// Rounding is done on the magnitude's bits: to nearest, ties away, but never past the largest finite TF32, where
// low takes what is missing. An infinity or NaN goes into low, which meets only the other operand's high part, never
// its low part, zero for many values; its own high part is a finite number of its sign. So neither Inf * 0 nor Inf -
// Inf arises from the splitting itself, also where both operands are infinite.
__device__ __forceinline__ SplitValue split_fp32(uint32_t bits) {
  constexpr uint32_t kMagnitude = 0x7fffffffu, kInfinity = 0x7f800000u, kHighBits = 0x7fffe000u, kHalfUlp = 0x1000u,
                     kOne = 0x3f800000u;
  const uint32_t magnitude = bits & kMagnitude;
  const uint32_t rounded = min(magnitude + kHalfUlp, kInfinity - 1u) & kHighBits;
  SplitValue s;
  s.high = (magnitude < kInfinity ? rounded : kOne) | (bits & ~kMagnitude);
  const float rest = __uint_as_float(bits) - __uint_as_float(s.high);
  s.low = __float_as_uint(rest * static_cast<float>(1 << kLowScaleLog2));
  return s;
}

// One element as it sits in memory (bits), and a 16-byte chunk of them ready for shared memory.
template <typename Config>
struct PixelChunk {
  static constexpr int kElements = Config::kChunkElements;
  using Storage = typename NumericTraits<Config::kNumeric>::Storage;

  uint32_t bits[kElements];

  __device__ __forceinline__ void load(int i, const Storage* pointer) {
    if constexpr (sizeof(Storage) == 4)
      bits[i] = __ldg(reinterpret_cast<const unsigned int*>(pointer));
    else
      bits[i] = __ldg(reinterpret_cast<const unsigned short*>(pointer));
  }

  // `watch` sees what goes into containers; other modes leave it alone.
  __device__ __forceinline__ uint4 packed(RangeWatch& watch) const {
    if constexpr (Config::kContainers) {
      uint32_t pair[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) pair[i] = watch.pack(__uint_as_float(bits[2 * i]), __uint_as_float(bits[2 * i + 1]));
      return make_uint4(pair[0], pair[1], pair[2], pair[3]);
    } else if constexpr (Config::kNumeric == Numeric::kStrictFP32) {
      return make_uint4(bits[0], bits[1], bits[2], bits[3]);  // split after ldmatrix
    } else {
      return make_uint4(bits[0] | bits[1] << 16, bits[2] | bits[3] << 16, bits[4] | bits[5] << 16,
                        bits[6] | bits[7] << 16);
    }
  }
};

template <Numeric kNumeric>
__device__ __forceinline__ void mma_tile(float (&d)[4], const uint4& a, uint32_t b0, uint32_t b1) {
  if constexpr (kNumeric == Numeric::kStrictFP32)
    mma_m16n8k8_tf32(d, a, b0, b1);
  else if constexpr (kNumeric == Numeric::kBF16)
    mma_m16n8k16_bf16(d, a, b0, b1);
  else
    mma_m16n8k16_f16(d, a, b0, b1);
}

// One k-step's operands of a warp: weights of all channels of the block, pixels of all its segments.
template <typename Config>
struct Fragments {
  uint4 a[Config::kRowTiles];
  uint32_t b[Config::kSegmentPairs][4];  // per pair of segments: two registers of each

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int m = 0; m < Config::kRowTiles; ++m) a[m] = make_uint4(0, 0, 0, 0);
#pragma unroll
    for (int s = 0; s < Config::kSegmentPairs; ++s)
#pragma unroll
      for (int i = 0; i < 4; ++i) b[s][i] = 0;
  }

  // weights: this lane's fragment of the step's tile in shared memory, in fragment order [piece][k-step][m16][lane]
  // window_row: this lane's ldmatrix row of k-step 0 for a segment that starts at window pixel 0
  // pair_offset: bytes from there to this lane's segment of each pair
  __device__ __forceinline__ void load(int k, uint32_t weights, uint32_t window_row,
                                       const uint32_t (&pair_offset)[Config::kSegmentPairs]) {
#pragma unroll
    for (int m = 0; m < Config::kRowTiles; ++m)
      a[m] = load_shared_16(weights + (k * Config::kRowTiles + m) * Config::FRAGMENT_TILE_BYTES);
    // The chunk position is an exclusive or: two chunks on is bit 1 of it, whatever the pixel.
#pragma unroll
    for (int s = 0; s < Config::kSegmentPairs; ++s) ldmatrix_x4(b[s], (window_row ^ (k * 32)) + pair_offset[s]);
  }
};

template <typename Config>
__device__ __forceinline__ void multiply(float (&acc)[Config::kSegmentsPerWarp][Config::kRowTiles][4],
                                         const Fragments<Config>& f) {
#pragma unroll
  for (int m = 0; m < Config::kRowTiles; ++m)
#pragma unroll
    for (int s = 0; s < Config::kSegmentsPerWarp; ++s)
      mma_tile<Config::kNumeric>(acc[s][m], f.a[m], f.b[s / 2][s % 2 * 2], f.b[s / 2][s % 2 * 2 + 1]);
}

// A whole step with split operands, both k-steps; arguments as for Fragments::load.
template <typename Config>
__device__ __forceinline__ void multiply_split_step(float (&acc)[Config::kSegmentsPerWarp][Config::kRowTiles][4],
                                                    uint32_t weights, uint32_t window_row,
                                                    const uint32_t (&pair_offset)[Config::kSegmentPairs]) {
  constexpr int kRowTiles = Config::kRowTiles;
  uint4 a[2][kRowTiles], a_low[2][kRowTiles];
#pragma unroll
  for (int k = 0; k < 2; ++k)
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      const uint32_t high = weights + (k * kRowTiles + m) * Config::FRAGMENT_TILE_BYTES;
      a[k][m] = load_shared_16(high);
      a_low[k][m] = load_shared_16(high + Config::WEIGHT_PIECE_BYTES);
    }
  constexpr float kLowUnit = 1.0f / static_cast<float>(1 << kLowScaleLog2);
#pragma unroll
  for (int pair = 0; pair < Config::kSegmentPairs; ++pair) {
    uint32_t b[2][4];
#pragma unroll
    for (int k = 0; k < 2; ++k) ldmatrix_x4(b[k], (window_row ^ (k * 32)) + pair_offset[pair]);
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      SplitValue v[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) v[i] = split_fp32(b[i / 2][2 * s + i % 2]);
      // The tensor core truncates what it adds up, so a sum stays in it for one step only. Corrections first, at
      // their own scale.
      float part[kRowTiles][4] = {};
#pragma unroll
      for (int k = 0; k < 2; ++k)
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m)
          mma_tile<Config::kNumeric>(part[m], a_low[k][m], v[2 * k].high, v[2 * k + 1].high);
#pragma unroll
      for (int k = 0; k < 2; ++k)
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m)
          mma_tile<Config::kNumeric>(part[m], a[k][m], v[2 * k].low, v[2 * k + 1].low);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i) part[m][i] *= kLowUnit;
#pragma unroll
      for (int k = 0; k < 2; ++k)
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m)
          mma_tile<Config::kNumeric>(part[m], a[k][m], v[2 * k].high, v[2 * k + 1].high);
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[2 * pair + s][m][i] += part[m][i];
    }
  }
}

}  // namespace cuda
}  // namespace tconv
