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
#include "weight_gradient_pack.cuh"
#include "weight_gradient_rows.cuh"

namespace tconv {
namespace cuda {

struct WeightGradientPortableConfig {
  static constexpr int kNumWarps = 8;
  static constexpr int kNumThreads = 32 * kNumWarps;
  static constexpr int kMaxStages = 4;
  static constexpr int kMaxTapRows = 8;
  static constexpr int kRowTiles = 4;  // m16 tiles of a warp
};

// How many warps share the columns of a tap: with three pieces an operand there are registers for half of the sums.
TCONV_HD constexpr int column_parts(int pieces) { return pieces == 1 ? 1 : 2; }
TCONV_HD constexpr int column_tiles(int pieces) { return 8 / column_parts(pieces); }  // n8 tiles of a warp

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
  int accumulate;                       // parts hold sums of earlier samples
  PackArgs<float> pack_x, pack_planes;  // of what packs in place
  const int* only_if;
};

// Which tap of the block's and which part of its columns a warp has. One that shares them with others takes every
// `ways`-th product; one too many takes none.
struct WarpShare {
  int tap, column_part, way, ways;

  __device__ __forceinline__ WarpShare(int warp, int taps, int parts, int products) {
    const int units = taps * parts, unit = warp % units;
    tap = unit / parts;
    column_part = unit - tap * parts;
    ways = min(WeightGradientPortableConfig::kNumWarps / units, products);
    way = warp / units < ways ? warp / units : products;
  }
};

// The same value, of which the compiler does not know it: what follows from it is worked out anew where it is needed,
// and takes no registers while products are formed.
__device__ __forceinline__ unsigned hidden(unsigned value) {
  asm volatile("" : "+r"(value));
  return value;
}

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
    float (&acc)[WeightGradientPortableConfig::kRowTiles][column_tiles(kPieces)][4], uint32_t x, int x_piece, int at,
    uint32_t planes, int planes_piece, int shifted, int first_chunk) {
  constexpr int kRowTiles = WeightGradientPortableConfig::kRowTiles, kColumnTiles = column_tiles(kPieces);
  const int lane = threadIdx.x % 32, row = lane % 8, low = lane / 8 % 2, high = lane / 16;
  // The chunk position is an exclusive or: two chunks on is bit 1 of it, whatever the pixel.
  const uint32_t of_x = pixel_address(x, at + high * 8 + row, low);
  const uint32_t of_planes = pixel_address(planes, shifted + low * 8 + row, first_chunk + high);
  uint32_t a[kPieces][kRowTiles][4];
#pragma unroll
  for (int piece = 0; piece < kPieces; ++piece)
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) ldmatrix_x4_transposed(a[piece][m], (of_x ^ m * 32) + piece * x_piece);
#pragma unroll
  for (int pair = 0; pair < kColumnTiles / 2; ++pair) {
    uint32_t b[kPieces][4];
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece)
      ldmatrix_x4_transposed(b[piece], (of_planes ^ pair * 32) + piece * planes_piece);
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        float (&sum)[4] = acc[m][2 * pair + n];
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

// What a block works on. Neighbouring blocks read the same rows.
struct PortableBlock {
  int pair, group, split;

  __device__ __forceinline__ PortableBlock(const WeightGradientPortableArgs& args, unsigned index) {
    const unsigned pairs = args.layout.pairs(), rest = index / pairs;
    pair = static_cast<int>(index - rest * pairs);
    split = static_cast<int>(rest / args.num_groups);
    group = static_cast<int>(rest) - split * args.num_groups;
  }

  // Its place among the parts.
  __device__ __forceinline__ int parts(const WeightGradientPortableArgs& args) const {
    return (group * args.layout.pairs() + pair) * args.num_splits + split;
  }

  // How many rows of pixels it has.
  __device__ __forceinline__ int rows(const WeightGradientPortableArgs& args) const {
    int count = 0;
    for (RowCursor at(args.layout, split); !at.done(args.layout, args.num_samples);
         at.next_run(args.layout, args.num_splits))
      count += at.end_row - at.row;
    return count;
  }
};

// Rows of the kernel that a group of taps reads.
struct TapRows {
  int first, count;

  __device__ __forceinline__ TapRows(const TapGroup& taps, int taps_w)
      : first(taps.first / taps_w), count((taps.first + taps.count - 1) / taps_w - first + 1) {}
};

// All threads: `bytes` from memory to shared memory.
__device__ __forceinline__ void copy_segment(uint32_t to, const unsigned char* from, int bytes) {
#pragma unroll 2
  for (int i = threadIdx.x * 16; i < bytes; i += 16 * WeightGradientPortableConfig::kNumThreads)
    cp_async_16(to + i, from + i);
}

// kInPlace: no segments were packed before; each block packs what it needs, in shared memory. Slower, but a single
// launch, for what stands behind another kernel and has as a rule nothing to do.
template <int kPieces, bool kBFloat16, bool kInPlace>
__global__ void __launch_bounds__(WeightGradientPortableConfig::kNumThreads, 1)
    weight_gradient_portable_kernel(const __grid_constant__ WeightGradientPortableArgs args) {
  using Config = WeightGradientPortableConfig;
  constexpr int kColumnTiles = column_tiles(kPieces);
#ifdef TCONV_GRADIENT_CHAINS
  await_previous_kernels();
#endif
  if (args.only_if != nullptr && *args.only_if == 0) return;
  const WeightGradientLayout& layout = args.layout;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const PortableBlock block(args, blockIdx.x);
  const TapGroup taps(block.group, layout.taps(), args.most_taps);

  int run = block.split, row_of_run = 0;  // of what is loaded next
  const uint32_t ring = smem_address(dynamic_smem());
  const int x_bytes = static_cast<int>(layout.x.segment_bytes),
            planes_bytes = static_cast<int>(layout.planes.segment_bytes);
  int write_stage = 0, read_stage = 0;
  const auto load_next = [&] {
    RowCursor loading(layout, run);
    if (!loading.done(layout, args.num_samples)) {
      loading.row += row_of_run;
      const PortableBlock here(args, hidden(blockIdx.x));
      const TapRows rows(TapGroup(here.group, layout.taps(), args.most_taps), layout.taps_w);
      const SegmentPlace place(layout, here.pair);
      if constexpr (kInPlace) {
        unsigned char* to = dynamic_smem() + write_stage * args.stage_bytes;
        pack_segment<kPieces>(args.pack_x, static_cast<unsigned>(place.x(layout, loading)), to);
        to += x_bytes;
        unsigned segment = static_cast<unsigned>(place.planes(layout, loading)) + rows.first * layout.step_h;
#pragma unroll 1
        for (int i = 0; i < rows.count; ++i, segment += layout.step_h, to += planes_bytes)
          pack_segment<kPieces>(args.pack_planes, segment, to);
      } else {
        const uint32_t stage = ring + write_stage * args.stage_bytes;
        copy_segment(stage, args.x + place.x(layout, loading) * x_bytes, x_bytes);
        const unsigned char* planes =
            args.planes + (place.planes(layout, loading) + rows.first * layout.step_h) * planes_bytes;
#pragma unroll 1
        for (int i = 0; i < rows.count; ++i, planes += static_cast<int64_t>(layout.step_h) * planes_bytes)
          copy_segment(stage + x_bytes + i * planes_bytes, planes, planes_bytes);
      }
      ++row_of_run;
      if (loading.row + 1 == loading.end_row) {
        run += args.num_splits;
        row_of_run = 0;
      }
      write_stage = write_stage + 1 == args.num_stages ? 0 : write_stage + 1;
    }
    cp_async_commit();  // also when empty: groups are counted
  };

  const int products = layout.segment / WeightGradientConfig::kStepPixels;
  const WarpShare share(warp, taps.count, column_parts(kPieces), products);
  const int tap = taps.first + share.tap;
  const int tap_row = tap / layout.taps_w, tap_column = (tap - tap_row * layout.taps_w) * layout.step_w;
  const int planes_at = x_bytes + (tap_row - taps.first / layout.taps_w) * planes_bytes;
  float acc[Config::kRowTiles][kColumnTiles][4] = {};
  bool add = args.accumulate != 0;
  // Sums of tensor cores drift downwards in magnitude the longer they are: they join sums in memory, of this thread
  // alone.
  const auto promote = [&] {
    if (share.way < products) {
      float* const part =
          args.parts + (static_cast<int64_t>(PortableBlock(args, hidden(blockIdx.x)).parts(args)) * Config::kNumWarps +
                        share.way * taps.count + share.tap) *
                           WeightGradientConfig::kTileValues;
#pragma unroll
      for (int m = 0; m < Config::kRowTiles; ++m)
#pragma unroll
        for (int n = 0; n < kColumnTiles; ++n)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            float2* const to =
                reinterpret_cast<float2*>(part + (m * 16 + half * 8 + lane / 4) * WeightGradientConfig::kBlockChannels +
                                          (share.column_part * kColumnTiles + n) * 8 + lane % 4 * 2);
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
  int until_promotion = WeightGradientConfig::kPromoteRows;
#pragma unroll 1
  for (int left = block.rows(args); left > 0; --left) {
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
#pragma unroll 1
    for (int product = share.way; product < products; product += share.ways) {
      const int at = product * WeightGradientConfig::kStepPixels;
      multiply_step<kPieces, kBFloat16>(acc, stage, x_bytes / kPieces, at, stage + planes_at, planes_bytes / kPieces,
                                        at + tap_column, share.column_part * kColumnTiles);
    }
    if (--until_promotion == 0) {
      promote();
      until_promotion = WeightGradientConfig::kPromoteRows;
    }
  }
  cp_async_wait<0>();
  promote();
}

}  // namespace cuda
}  // namespace tconv
