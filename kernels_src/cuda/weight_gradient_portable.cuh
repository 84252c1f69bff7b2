// The weight gradient on tensor cores of sm_80 and later (mma.sync), from packed segments (weight_gradient_layout.h).
//
// A warp has the sums of one tap: 64 in channels (rows, A: x) x 64 channels of the planes (columns, B), both read with
// pixels as the reduction, transposed by ldmatrix. The warps of a block have different taps of the same pair of channel
// blocks, or, where a block has fewer taps than warps, the same tap and different products of 16 pixels. Segments of x,
// and for each row of taps one of the planes, come through a cp.async ring. A block walks its part of all samples'
// rows; its sums go to memory, and are added up there by another kernel (weight_gradient_sums.cuh), in a fixed order.
#pragma once

#include "portable_operands.cuh"
#include "weight_gradient_layout.h"
#include "weight_gradient_rows.cuh"

namespace tconv {
namespace cuda {

struct WeightGradientPortableConfig {
  static constexpr int kNumWarps = 8;
  static constexpr int kNumThreads = 32 * kNumWarps;
  static constexpr int kMaxStages = 4;
  static constexpr int kMaxTapRows = 8;
  static constexpr int kRowTiles = 4, kColumnTiles = 8;  // m16 and n8 tiles of a warp
};

// Taps [first, first + count) of a block, row by row of the kernel; count is a power of two.
struct TapGroup {
  int first, count;

  // Group `index` of those that `taps` taps are cut into: `most` each, a power of two, then the rest by powers of two.
  TCONV_HD TapGroup(int index, int taps, int most) {
    const int whole = taps / most;
    if (index < whole) {
      first = index * most, count = most;
      return;
    }
    first = whole * most;
    count = most / 2;
    for (int skip = index - whole;; count /= 2) {
      if (count == 0) return;
      if (((taps - whole * most) & count) == 0) continue;
      if (skip-- == 0) return;
      first += count;
    }
  }
};

TCONV_HD int num_tap_groups(int taps, int most) {
  int groups = taps / most;
  for (int rest = taps % most; rest > 0; rest /= 2) groups += rest & 1;
  return groups;
}

struct WeightGradientPortableArgs {
  WeightGradientLayout layout;
  const unsigned char* x;
  const unsigned char* planes;
  float* parts;                           // [tap group][pair of channel blocks][split][warp][64][64]
  int most_taps, num_groups, num_splits;  // of taps; of pixels
  int num_samples;                        // that are packed
  int num_stages, stage_bytes;
  int accumulate;  // parts hold sums of earlier samples
  const int* only_if;
};

// The warp that shares a tap with others takes every `ways`-th product.
struct WarpShare {
  int tap, way, ways;

  __device__ __forceinline__ WarpShare(int warp, int taps, int products)
      : tap(warp % taps), way(warp / taps), ways(min(WeightGradientPortableConfig::kNumWarps / taps, products)) {}
};

// 8 x 16-byte matrices as ldmatrix_x4 has them, each transposed: lane l receives of each matrix 16-bit values (2 (l %
// 4), l / 4) and (2 (l % 4) + 1, l / 4), as (row, column).
__device__ __forceinline__ void ldmatrix_x4_transposed(uint32_t (&r)[4], uint32_t smem_row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(smem_row));
}

template <bool kBFloat16>
__device__ __forceinline__ void multiply_pixels(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const uint4 fragment = make_uint4(a[0], a[1], a[2], a[3]);
  if constexpr (kBFloat16)
    mma_m16n8k16_bf16(d, fragment, b0, b1);
  else
    mma_m16n8k16_f16(d, fragment, b0, b1);
}

// Address of this lane's row of two 8 x 8 matrices by pixels and two by channels: for x pixels are the outer pair, for
// planes the inner.
__device__ __forceinline__ uint32_t pixel_address(uint32_t segment, int pixel, int chunk) {
  return segment + pixel * WeightGradientConfig::kPixelBytes + ((chunk ^ pixel) & 7) * 16;
}

// One product of 16 pixels, from pixel `at` of x's segment and `shifted` of the planes'.
template <int kPieces, bool kBFloat16>
__device__ __forceinline__ void multiply_step(
    float (&acc)[WeightGradientPortableConfig::kRowTiles][WeightGradientPortableConfig::kColumnTiles][4], uint32_t x,
    int x_piece, int at, uint32_t planes, int planes_piece, int shifted) {
  constexpr int kRowTiles = WeightGradientPortableConfig::kRowTiles,
                kColumnTiles = WeightGradientPortableConfig::kColumnTiles;
  const int lane = threadIdx.x % 32, row = lane % 8, low = lane / 8 % 2, high = lane / 16;
  // Of three pieces there are registers for half the rows at a time.
  constexpr int kRowsAtOnce = kPieces == 1 ? kRowTiles : kRowTiles / 2;
#pragma unroll
  for (int m0 = 0; m0 < kRowTiles; m0 += kRowsAtOnce) {
    uint32_t a[kPieces][kRowsAtOnce][4];
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece)
#pragma unroll
      for (int m = 0; m < kRowsAtOnce; ++m)
        ldmatrix_x4_transposed(a[piece][m],
                               pixel_address(x + piece * x_piece, at + high * 8 + row, 2 * (m0 + m) + low));
#pragma unroll
    for (int pair = 0; pair < kColumnTiles / 2; ++pair) {
      uint32_t b[kPieces][4];
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece)
        ldmatrix_x4_transposed(b[piece],
                               pixel_address(planes + piece * planes_piece, shifted + low * 8 + row, 2 * pair + high));
#pragma unroll
      for (int n = 0; n < 2; ++n)
#pragma unroll
        for (int m = 0; m < kRowsAtOnce; ++m) {
          float (&sum)[4] = acc[m0 + m][2 * pair + n];
          if constexpr (kPieces == 1) {
            multiply_pixels<kBFloat16>(sum, a[0][m], b[0][2 * n], b[0][2 * n + 1]);
          } else {
            // The tensor core truncates what it adds up, so a sum stays in it for one step only, small products first.
            float part[4] = {};
            constexpr int kOfX[] = {2, 0, 1, 1, 0, 0}, kOfPlanes[] = {0, 2, 1, 0, 1, 0};
#pragma unroll
            for (int i = 0; i < 6; ++i)
              multiply_pixels<kBFloat16>(part, a[kOfX[i]][m], b[kOfPlanes[i]][2 * n], b[kOfPlanes[i]][2 * n + 1]);
#pragma unroll
            for (int i = 0; i < 4; ++i) sum[i] += part[i];
          }
        }
    }
  }
}

template <int kPieces, bool kBFloat16>
__global__ void __launch_bounds__(WeightGradientPortableConfig::kNumThreads, 1)
    weight_gradient_portable_kernel(const __grid_constant__ WeightGradientPortableArgs args) {
  using Config = WeightGradientPortableConfig;
  if (args.only_if != nullptr && *args.only_if == 0) return;
  const WeightGradientLayout& layout = args.layout;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  // Neighbouring blocks read the same rows.
  const int pairs = layout.pairs();
  const int pair = blockIdx.x % pairs, group_index = blockIdx.x / pairs % args.num_groups,
            split = blockIdx.x / pairs / args.num_groups;
  const TapGroup taps(group_index, layout.taps(), args.most_taps);
  const SegmentPlace place(layout, pair);
  const int tap_row0 = taps.first / layout.taps_w,
            tap_rows = (taps.first + taps.count - 1) / layout.taps_w - tap_row0 + 1;

  RowCursor loading(layout, split);
  const uint32_t ring = smem_address(dynamic_smem());
  const int x_bytes = static_cast<int>(layout.x.segment_bytes),
            planes_bytes = static_cast<int>(layout.planes.segment_bytes);
  int write_stage = 0, read_stage = 0;
  const auto load_next = [&] {
    if (!loading.done(layout, args.num_samples)) {
      const uint32_t stage = ring + write_stage * args.stage_bytes;
      const unsigned char* const x = args.x + place.x(layout, loading) * x_bytes;
      for (int i = threadIdx.x * 16; i < x_bytes; i += 16 * Config::kNumThreads) cp_async_16(stage + i, x + i);
      const unsigned char* planes =
          args.planes + (place.planes(layout, loading) + tap_row0 * layout.step_h) * planes_bytes;
      for (int tap_row = 0; tap_row < tap_rows; ++tap_row, planes += static_cast<int64_t>(layout.step_h) * planes_bytes)
        for (int i = threadIdx.x * 16; i < planes_bytes; i += 16 * Config::kNumThreads)
          cp_async_16(stage + x_bytes + tap_row * planes_bytes + i, planes + i);
      loading.next(layout, args.num_splits);
      write_stage = write_stage + 1 == args.num_stages ? 0 : write_stage + 1;
    }
    cp_async_commit();  // also when empty: groups are counted
  };

  const int products = layout.segment / WeightGradientConfig::kStepPixels;
  const WarpShare share(warp, taps.count, products);
  const int tap = taps.first + share.tap;
  const bool works = share.way < share.ways;
  const int tap_row = tap / layout.taps_w, tap_column = (tap - tap_row * layout.taps_w) * layout.step_w;
  const int planes_at = x_bytes + (tap_row - tap_row0) * planes_bytes;
  float* const part =
      args.parts +
      ((static_cast<int64_t>(group_index * pairs + pair) * args.num_splits + split) * Config::kNumWarps + warp) *
          WeightGradientConfig::kTileValues;

  float acc[Config::kRowTiles][Config::kColumnTiles][4] = {};
  bool add = args.accumulate != 0;
  // Sums of tensor cores drift downwards in magnitude the longer they are: they join sums in memory, of this thread
  // alone.
  const auto promote = [&] {
    if (works) {
#pragma unroll
      for (int m = 0; m < Config::kRowTiles; ++m)
#pragma unroll
        for (int n = 0; n < Config::kColumnTiles; ++n)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float2* const to = reinterpret_cast<float2*>(
                part + (m * 16 + half * 8 + lane / 4) * WeightGradientConfig::kBlockChannels + n * 8 + lane % 4 * 2);
            float2 sum = make_float2(acc[m][n][2 * half], acc[m][n][2 * half + 1]);
            if (add) {
              const float2 before = *to;
              sum.x += before.x, sum.y += before.y;
            }
            *to = sum;
            acc[m][n][2 * half] = acc[m][n][2 * half + 1] = 0.0f;
            if (half == 1 && n % 2 == 1)
              asm volatile("" ::: "memory");  // few loads at a time, for the sake of registers
          }
    }
    add = true;
  };

  for (int i = 0; i < args.num_stages - 1; ++i) load_next();
  const int rows_between = max(1, WeightGradientConfig::kPromoteSteps / ((products + share.ways - 1) / share.ways));
  int until_promotion = rows_between;
#pragma unroll 1
  for (RowCursor at(layout, split); !at.done(layout, args.num_samples); at.next(layout, args.num_splits)) {
    if (args.num_stages == 4)
      cp_async_wait<2>();
    else if (args.num_stages == 3)
      cp_async_wait<1>();
    else
      cp_async_wait<0>();
    __syncthreads();
    load_next();  // into the stage that the row before this one has left
    const uint32_t stage = ring + read_stage * args.stage_bytes;
    read_stage = read_stage + 1 == args.num_stages ? 0 : read_stage + 1;
    if (works) {
#pragma unroll 1
      for (int product = share.way; product < products; product += share.ways) {
        const int at = product * WeightGradientConfig::kStepPixels;
        multiply_step<kPieces, kBFloat16>(acc, stage, x_bytes / kPieces, at, stage + planes_at, planes_bytes / kPieces,
                                          at + tap_column);
      }
    }
    if (--until_promotion == 0) {
      promote();
      until_promotion = rows_between;
    }
  }
  cp_async_wait<0>();
  promote();
}

}  // namespace cuda
}  // namespace tconv
