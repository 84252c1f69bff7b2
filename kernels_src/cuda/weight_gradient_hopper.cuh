// The weight gradient on Hopper's tensor cores (wgmma), from packed segments (weight_gradient_layout.h). A consumer
// warpgroup has a quad of taps (weight_gradient_quads.h): D[64 in channels x up to 4 taps x 64 channels of the planes]
// += x[64 x pixels] * planes[pixels x 4 x 64], pixels being K, 16 a product. A block walks its part of all rows of
// pixels; one thread copies segments of x and planes, row by row, into two rings. A row of the planes is read by the
// quads of one row of the kernel after the other: it comes once for all. Sums go to memory, where
// weight_gradient_sums.cuh adds them up, after every kPromoteRows rows, because tensor cores truncate theirs.
#pragma once

#include "mma_sync.cuh"
#include "hopper_primitives.cuh"
#include "weight_gradient_layout.h"
#include "weight_gradient_quads.h"
#include "weight_gradient_rows.cuh"
#include "weight_gradient_wgmma.cuh"

namespace tconv {
namespace cuda {
namespace pixels {

using hopper::mbarrier_arrive;
using hopper::mbarrier_wait;

struct WeightGradientHopperArgs {
  WeightGradientLayout layout;
  const unsigned char* x;
  const unsigned char* planes;
  float* parts;     // [block][warpgroup][tap of the quad], a tile each
  int num_samples;  // that are packed
  int num_groups;
  int first_split[WeightGradientHopperConfig::kMaxGroups + 1];  // of each group, among all groups'
  int x_slots, planes_slots;
  int accumulate;  // parts hold sums of earlier samples
#ifdef TCONV_GRADIENT_CHAINS
  const int* skip_if;  // null, or where it is set nothing is added
#endif
};

// Slots of equal size, each with a full and an empty barrier.
struct Ring {
  uint32_t slots, full, empty;
  int size, slot_bytes;
};

struct Rings {
  Ring x, planes;
#ifdef TCONV_WALKS_DEPTH
  static constexpr int kBoundary = 1024;  // which slots of wide pixels begin at
#endif

  // The planes first: memcheck takes what a product reads of them for blocks behind each other, beyond the last slot.
  __device__ __forceinline__ Rings(const WeightGradientHopperArgs& args, uint32_t base) {
    planes = {base, 0, 0, args.planes_slots, static_cast<int>(args.layout.planes.segment_bytes)};
    x = {planes.slots + planes.size * planes.slot_bytes, 0, 0, args.x_slots,
         static_cast<int>(args.layout.x.segment_bytes)};
#ifdef TCONV_WALKS_DEPTH
    x.slots = (x.slots + kBoundary - 1) / kBoundary * kBoundary;
#endif
    x.full = x.slots + x.size * x.slot_bytes;
    x.empty = x.full + 8 * x.size;
    planes.full = x.empty + 8 * x.size;
    planes.empty = planes.full + 8 * planes.size;
  }
};

__device__ __forceinline__ void init_barriers(const Ring& ring, int readers) {
  for (int i = 0; i < ring.size; ++i) {
    hopper::mbarrier_init(ring.full + 8 * i, 1);
    hopper::mbarrier_init(ring.empty + 8 * i, readers);
  }
}

// A place in a ring that knows how often it has gone round.
struct Place {
  int slot = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void next(const Ring& ring) {
    if (++slot == ring.size) {
      slot = 0;
      parity ^= 1;
    }
  }
};

// The thread that copies.
__device__ __forceinline__ void copy_next(const Ring& ring, Place& at, const unsigned char* from) {
  mbarrier_wait(ring.empty + 8 * at.slot, at.parity ^ 1);
  mbarrier_wait(ring.full + 8 * at.slot,
                at.parity ^ 1);  // follows; asked for the sake of racecheck, which sees no order through others
  hopper::mbarrier_arrive_expect_bytes(ring.full + 8 * at.slot, ring.slot_bytes);
  hopper::bulk_load(ring.slots + at.slot * ring.slot_bytes, from, ring.slot_bytes, ring.full + 8 * at.slot);
  at.next(ring);
}

__device__ __forceinline__ void copy_rows(const WeightGradientHopperArgs& args, const Rings& rings,
                                          const SegmentPlace& place, const QuadGroup& group, RowCursor at, int splits) {
  const WeightGradientLayout& layout = args.layout;
  const int span = group.row_span * layout.step_h;
  Place x_at, planes_at;
  for (; !at.done(layout, args.num_samples); at.next_run(layout, splits)) {
    const int length = at.end_row - at.row;
    // The last sample first: what was packed last, L2 still has. What reads the first one next finds it there.
    RowCursor from = at;
    from.sample = args.num_samples - 1 - at.sample;
    const unsigned char* x = args.x + place.x(layout, from) * rings.x.slot_bytes;
    const unsigned char* planes =
        args.planes +
        (place.planes(layout, from) + static_cast<int64_t>(group.first_row) * layout.step_h) * rings.planes.slot_bytes;
    for (int i = -span; i < length; ++i, planes += rings.planes.slot_bytes) {
      copy_next(rings.planes, planes_at, planes);
      if (i < 0) continue;
      copy_next(rings.x, x_at, x);
      x += rings.x.slot_bytes;
    }
  }
}

// Matrix descriptor of pixels as K: the low half holds the start in units of 16 bytes, and the distance of blocks of 64
// columns.
__device__ __forceinline__ uint32_t pixels_low(uint32_t shared, uint32_t block_bytes) {
  return (block_bytes >> 4) << 16 | (shared & 0x3FFFF) >> 4;
}
constexpr uint32_t kProductStep = WeightGradientConfig::kStepPixels * WeightGradientConfig::kPixelBytes >> 4;

// Products of 16 pixels side by side, committed as one group.
#ifdef TCONV_WALKS_DEPTH
// kColumns: of a tap, 64, or 32 of narrow pixels.
template <int kProducts, int kTaps, bool kBFloat16, int kColumns>
__device__ __forceinline__ void multiply_pixels_of_row(float (&acc)[kTaps * kColumns / 2], uint32_t a, uint32_t b) {
  constexpr bool kNarrow = kColumns < WeightGradientConfig::kBlockChannels;
  hopper::wgmma_fence();
#pragma unroll
  for (uint32_t k = 0; k < kProducts; ++k) {
    const uint32_t low = b + k * (kNarrow ? kProductStep / 2 : kProductStep);
    PixelWgmma<kTaps * kColumns>::template multiply<kBFloat16>(
        acc, hopper::matrix_descriptor(a + k * kProductStep),
        kNarrow ? narrow_pixels_descriptor(low) : hopper::matrix_descriptor(low));
  }
  hopper::wgmma_commit();
}
#else
template <int kProducts, int kTaps, bool kBFloat16>
__device__ __forceinline__ void multiply_pixels_of_row(float (&acc)[kTaps * 32], uint32_t a, uint32_t b) {
  hopper::wgmma_fence();
#pragma unroll
  for (uint32_t k = 0; k < kProducts; ++k)
    PixelWgmma<kTaps * 64>::template multiply<kBFloat16>(acc, hopper::matrix_descriptor(a + k * kProductStep),
                                                         hopper::matrix_descriptor(b + k * kProductStep));
  hopper::wgmma_commit();
}
#endif

// Straight-line code for each number of them, because a loop would wait for every product.
#ifdef TCONV_WALKS_DEPTH
template <int kTaps, bool kBFloat16, int kColumns>
__device__ __forceinline__ void multiply_row(float (&acc)[kTaps * kColumns / 2], int products, uint32_t a, uint32_t b) {
  static_assert(WeightGradientConfig::kMaxSegment == 4 * WeightGradientConfig::kStepPixels, "up to four products");
  switch (products) {
    case 1: return multiply_pixels_of_row<1, kTaps, kBFloat16, kColumns>(acc, a, b);
    case 2: return multiply_pixels_of_row<2, kTaps, kBFloat16, kColumns>(acc, a, b);
    case 3: return multiply_pixels_of_row<3, kTaps, kBFloat16, kColumns>(acc, a, b);
    default: return multiply_pixels_of_row<4, kTaps, kBFloat16, kColumns>(acc, a, b);
  }
}
#else
template <int kTaps, bool kBFloat16>
__device__ __forceinline__ void multiply_row(float (&acc)[kTaps * 32], int products, uint32_t a, uint32_t b) {
  static_assert(WeightGradientConfig::kMaxSegment == 4 * WeightGradientConfig::kStepPixels, "up to four products");
  switch (products) {
    case 1: return multiply_pixels_of_row<1, kTaps, kBFloat16>(acc, a, b);
    case 2: return multiply_pixels_of_row<2, kTaps, kBFloat16>(acc, a, b);
    case 3: return multiply_pixels_of_row<3, kTaps, kBFloat16>(acc, a, b);
    default: return multiply_pixels_of_row<4, kTaps, kBFloat16>(acc, a, b);
  }
}
#endif

// What a warpgroup does: the sums of one quad over every ways-th row, from row `way` on.
#ifdef TCONV_WALKS_DEPTH
template <int kTaps, bool kBFloat16, int kColumns>
#else
template <int kTaps, bool kBFloat16>
#endif
__device__ __forceinline__ void sum_quad(const WeightGradientHopperArgs& args, const Rings& rings,
                                         const QuadGroup& group, const Quad& quad, int way, RowCursor at, int splits,
                                         float* part) {
  const WeightGradientLayout& layout = args.layout;
  const bool elected = threadIdx.x % 32 == 0;
  const int products = layout.segment / WeightGradientConfig::kStepPixels;
  const int lag = (quad.tap_row - group.first_row) * layout.step_h, span = group.row_span * layout.step_h;
  const uint32_t x_low = pixels_low(rings.x.slots, 1024);  // one block of 64: no distance is read
#ifdef TCONV_WALKS_DEPTH
  constexpr int kTapBytes = 2 * kColumns;  // between neighbours
  const uint32_t planes_low =
      pixels_low(rings.planes.slots + quad.first_column * layout.step_w * kTapBytes, layout.step_w * kTapBytes);
#else
  const uint32_t planes_low =
      pixels_low(rings.planes.slots + quad.first_column * layout.step_w * WeightGradientConfig::kPixelBytes,
                 layout.step_w * WeightGradientConfig::kPixelBytes);
#endif
  float4* const sums = reinterpret_cast<float4*>(part) + threadIdx.x % 128;

#ifdef TCONV_WALKS_DEPTH
  constexpr int kValues = kTaps * kColumns / 2;
  float acc[kValues];
#pragma unroll
  for (int i = 0; i < kValues; ++i) acc[i] = 0.0f;
  // Of a thread's quads of values in a part, whose tiles have 64 columns.
  const auto in_part = [](int i) { return (i / (kColumns / 8) * 8 + i % (kColumns / 8)) * 128; };
#else
  float acc[kTaps * 32];
#pragma unroll
  for (int i = 0; i < kTaps * 32; ++i) acc[i] = 0.0f;
#endif
  Place x_at, planes_at;
  int previous_x = -1, previous_planes = 0;  // slots that products under way read
  const auto release = [&](int x_slot, int planes_slot) {
    if (!elected) return;
    mbarrier_arrive(rings.x.empty + 8 * x_slot);
    mbarrier_arrive(rings.planes.empty + 8 * planes_slot);
  };
  const auto finish_products = [&] {
    hopper::wgmma_wait<0>();
    if (previous_x >= 0) release(previous_x, previous_planes);
    previous_x = -1;
  };
  // Rows of the planes that are for other quads alone.
  const auto skip_planes = [&](int count) {
#pragma unroll 1
    for (; count > 0; --count) {
      mbarrier_wait(rings.planes.full + 8 * planes_at.slot, planes_at.parity);
      if (elected) mbarrier_arrive(rings.planes.empty + 8 * planes_at.slot);
      planes_at.next(rings.planes);
    }
  };

  int left_of_run = 0, until_promotion = WeightGradientConfig::kPromoteRows, turn = way;
  bool add = args.accumulate != 0;
#pragma unroll 1
  for (;;) {
    if (!at.done(layout, args.num_samples)) {
      if (left_of_run == 0) {
        left_of_run = at.end_row - at.row;
        skip_planes(lag);
      }
      mbarrier_wait(rings.x.full + 8 * x_at.slot, x_at.parity);
      mbarrier_wait(rings.planes.full + 8 * planes_at.slot, planes_at.parity);
      if (turn == 0) {
        const uint32_t a = hopper::uniform(x_low + x_at.slot * (rings.x.slot_bytes >> 4));
        const uint32_t b = hopper::uniform(planes_low + planes_at.slot * (rings.planes.slot_bytes >> 4));
#ifdef TCONV_WALKS_DEPTH
        multiply_row<kTaps, kBFloat16, kColumns>(acc, products, a, b);
#else
        multiply_row<kTaps, kBFloat16>(acc, products, a, b);
#endif
        hopper::wgmma_wait<1>();  // the row before this one is done with its slots
        if (previous_x >= 0) release(previous_x, previous_planes);
        previous_x = x_at.slot, previous_planes = planes_at.slot;
      } else {
        release(x_at.slot, planes_at.slot);
      }
      turn = turn == 0 ? group.ways - 1 : turn - 1;
      x_at.next(rings.x);
      planes_at.next(rings.planes);
      --until_promotion;
      if (--left_of_run == 0) {
        at.next_run(layout, splits);
        finish_products();
        skip_planes(span - lag);
      }
    }
    const bool done = at.done(layout, args.num_samples);
    if (until_promotion == 0 || done) {
      finish_products();
      hopper::pin_registers(acc);
#ifdef TCONV_WALKS_DEPTH
      if (add) {
#pragma unroll
        for (int i = 0; i < kValues / 4; ++i) {
          const float4 before = sums[in_part(i)];
          acc[4 * i] += before.x, acc[4 * i + 1] += before.y, acc[4 * i + 2] += before.z, acc[4 * i + 3] += before.w;
        }
      }
#pragma unroll
      for (int i = 0; i < kValues / 4; ++i) {
        sums[in_part(i)] = make_float4(acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3]);
        acc[4 * i] = acc[4 * i + 1] = acc[4 * i + 2] = acc[4 * i + 3] = 0.0f;
      }
#else
      if (add) {
#pragma unroll
        for (int i = 0; i < kTaps * 8; ++i) {
          const float4 before = sums[i * 128];
          acc[4 * i] += before.x, acc[4 * i + 1] += before.y, acc[4 * i + 2] += before.z, acc[4 * i + 3] += before.w;
        }
      }
#pragma unroll
      for (int i = 0; i < kTaps * 8; ++i) {
        sums[i * 128] = make_float4(acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3]);
        acc[4 * i] = acc[4 * i + 1] = acc[4 * i + 2] = acc[4 * i + 3] = 0.0f;
      }
#endif
      add = true;
      until_promotion = WeightGradientConfig::kPromoteRows;
      if (done) return;
    }
  }
}

#ifdef TCONV_WALKS_DEPTH
template <bool kBFloat16, int kColumns>
__device__ __forceinline__ void sum_quad_of(const WeightGradientHopperArgs& args, const Rings& rings,
                                            const QuadGroup& group, const Quad& quad, int way, const RowCursor& rows,
                                            int splits, float* part) {
  switch (quad.taps) {
    case 1: return sum_quad<1, kBFloat16, kColumns>(args, rings, group, quad, way, rows, splits, part);
    case 2: return sum_quad<2, kBFloat16, kColumns>(args, rings, group, quad, way, rows, splits, part);
    case 3: return sum_quad<3, kBFloat16, kColumns>(args, rings, group, quad, way, rows, splits, part);
    default: return sum_quad<4, kBFloat16, kColumns>(args, rings, group, quad, way, rows, splits, part);
  }
}
#endif

#ifdef TCONV_WALKS_DEPTH
template <bool kBFloat16>
__device__ __forceinline__ void sum_all_rows(const WeightGradientHopperArgs& args, const Rings& rings, int ways,
                                             int way, RowCursor at, int splits, float* part);

// Tiles of sums that a warpgroup leaves.
TCONV_HD int warpgroup_tiles(const WeightGradientLayout& layout) {
  return layout.all_rows ? layout.taps() : WeightGradientHopperConfig::kMaxTaps;
}
#endif

template <bool kBFloat16>
__global__ void __launch_bounds__(WeightGradientHopperConfig::kThreads, 1)
    weight_gradient_hopper_kernel(const __grid_constant__ WeightGradientHopperArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Config = WeightGradientHopperConfig;
  extern __shared__ __align__(1024) char gradient_storage[];
  const WeightGradientLayout& layout = args.layout;
#ifdef TCONV_GRADIENT_CHAINS
  if (skips_products<Config>(args)) return;
#endif
  const Rings rings(args, smem_address(gradient_storage));
  if (rings.planes.slots % 1024 != 0) __trap();  // the swizzle goes by address bits
  // Neighbouring blocks read the same rows.
  const int pairs = layout.pairs(), pair = blockIdx.x % pairs, nth = blockIdx.x / pairs;
  int group_index = 0;
  while (nth >= args.first_split[group_index + 1]) ++group_index;
  const int split = nth - args.first_split[group_index];
  const int splits = args.first_split[group_index + 1] - args.first_split[group_index];
  const QuadTable table(layout.taps_h, layout.taps_w);
#ifdef TCONV_WALKS_DEPTH
  const QuadGroup group = layout.all_rows ? QuadGroup::of_all(table) : QuadGroup(table, group_index);
#else
  const QuadGroup group(table, group_index);
#endif
  const SegmentPlace place(layout, pair);
  const RowCursor rows(layout, split);
  if (threadIdx.x == 0) {
    const int readers = 4 * group.count * group.ways;  // warps
    init_barriers(rings.x, readers);
    init_barriers(rings.planes, readers);
    hopper::fence_barrier_init();
  }
  __syncthreads();

  const int warpgroup = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0);
  if (warpgroup == Config::kConsumers) {
    hopper::set_registers<Config::kLaunchRegisters, Config::kProducerRegisters>();
    if (threadIdx.x % 128 == 0) copy_rows(args, rings, place, group, rows, splits);
  } else {
    hopper::set_registers<Config::kLaunchRegisters, Config::kConsumerRegisters>();
    if (warpgroup >= group.count * group.ways) return;
    const Quad quad = table[group.begin + warpgroup % group.count];
    const int way = warpgroup / group.count;
#ifdef TCONV_WALKS_DEPTH
    float* const part = args.parts + (static_cast<int64_t>(blockIdx.x) * Config::kConsumers + warpgroup) *
                                         (warpgroup_tiles(layout) * WeightGradientConfig::kTileValues);
    if (layout.all_rows) return sum_all_rows<kBFloat16>(args, rings, group.ways, way, rows, splits, part);
    if (layout.narrow) return sum_quad_of<kBFloat16, 32>(args, rings, group, quad, way, rows, splits, part);
    sum_quad_of<kBFloat16, 64>(args, rings, group, quad, way, rows, splits, part);
#else
    float* const part = args.parts + (static_cast<int64_t>(blockIdx.x) * Config::kConsumers + warpgroup) *
                                         (Config::kMaxTaps * WeightGradientConfig::kTileValues);
    switch (quad.taps) {
      case 1: return sum_quad<1, kBFloat16>(args, rings, group, quad, way, rows, splits, part);
      case 2: return sum_quad<2, kBFloat16>(args, rings, group, quad, way, rows, splits, part);
      case 3: return sum_quad<3, kBFloat16>(args, rings, group, quad, way, rows, splits, part);
      default: return sum_quad<4, kBFloat16>(args, rings, group, quad, way, rows, splits, part);
    }
#endif
  }
#endif
}

}  // namespace pixels
}  // namespace cuda
}  // namespace tconv
