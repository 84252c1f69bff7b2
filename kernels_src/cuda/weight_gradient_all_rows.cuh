// The Hopper weight gradient of planes of at most 32 channels and 3 x 3 taps: a warpgroup has all of them, 9 x 32
// columns of sums, for every second row of pixels. Rows of x and of the planes then come once for all taps, which is
// what the device has too little bandwidth for where few channels make few products of a row.
#pragma once

#include "weight_gradient_hopper.cuh"

namespace tconv {
namespace cuda {
namespace pixels {

// Slots of a ring that were read and wait for products to be done with them.
struct ReadSlots {
  Place first;
  int count = 0;

  __device__ __forceinline__ void release(const Ring& ring, bool elected) {
#pragma unroll 1
    for (; count > 0; --count) {
      if (elected) mbarrier_arrive(ring.empty + 8 * first.slot);
      first.next(ring);
    }
  }
};

// The sums of all taps over every ways-th row, from row `way` on.
template <bool kBFloat16>
__device__ __forceinline__ void sum_all_rows(const WeightGradientHopperArgs& args, const Rings& rings, int ways,
                                             int way, RowCursor at, int splits, float* part) {
  constexpr int kRows = 3, kTaps = 3, kColumns = 32, kValues = kTaps * kColumns / 2;
  const WeightGradientLayout& layout = args.layout;
  const bool elected = threadIdx.x % 32 == 0;
  const int products = layout.segment / WeightGradientConfig::kStepPixels;
  const int span = (kRows - 1) * layout.step_h;
  const uint32_t x_low = pixels_low(rings.x.slots, 1024);  // one block of 64: no distance is read
  const uint32_t planes_low = pixels_low(rings.planes.slots, layout.step_w * 2 * kColumns);
  float4* const sums = reinterpret_cast<float4*>(part) + threadIdx.x % 128;

  float acc[kRows][kValues];
#pragma unroll
  for (int row = 0; row < kRows; ++row)
#pragma unroll
    for (int i = 0; i < kValues; ++i) acc[row][i] = 0.0f;
  Place x_at, newest;  // of x; the planes' row that the last tap row reads
  int oldest = 0;      // the slot that the first one reads
  ReadSlots of_x, of_planes;
  const auto next_planes = [&] {
    mbarrier_wait(rings.planes.full + 8 * newest.slot, newest.parity);
    newest.next(rings.planes);
  };
  const auto release = [&] {
    of_x.release(rings.x, elected);
    of_planes.release(rings.planes, elected);
  };

  int left_of_run = 0, until_promotion = WeightGradientConfig::kPromoteRows, turn = way;
  bool add = args.accumulate != 0;
#pragma unroll 1
  for (;;) {
    if (!at.done(layout, args.num_samples)) {
      if (left_of_run == 0) {
        left_of_run = at.end_row - at.row;
#pragma unroll 1
        for (int i = 0; i < span; ++i) next_planes();
      }
      mbarrier_wait(rings.x.full + 8 * x_at.slot, x_at.parity);
      next_planes();
      if (turn == 0) {
        const uint32_t a = hopper::uniform(x_low + x_at.slot * (rings.x.slot_bytes >> 4));
#pragma unroll
        for (int row = 0; row < kRows; ++row) {
          int slot = oldest + row * layout.step_h;
          while (slot >= rings.planes.size) slot -= rings.planes.size;
          const uint32_t b = hopper::uniform(planes_low + slot * (rings.planes.slot_bytes >> 4));
          multiply_row<kTaps, kBFloat16, kColumns>(acc[row], products, a, b);
        }
        hopper::wgmma_wait<kRows>();  // the rows before this one are done with their slots
        release();
      }
      ++of_x.count, ++of_planes.count;
      turn = turn == 0 ? ways - 1 : turn - 1;
      x_at.next(rings.x);
      oldest = oldest + 1 == rings.planes.size ? 0 : oldest + 1;
      --until_promotion;
      if (--left_of_run == 0) {
        at.next_run(layout, splits);
        hopper::wgmma_wait<0>();
        of_planes.count += span;
        release();
        oldest = newest.slot;
      }
    }
    const bool done = at.done(layout, args.num_samples);
    if (until_promotion == 0 || done) {
      hopper::wgmma_wait<0>();
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        hopper::pin_registers(acc[row]);
#pragma unroll
        for (int i = 0; i < kValues / 4; ++i) {
          float4* const sum = sums + ((row * kTaps + i / 4) * 8 + i % 4) * 128;  // tiles have 64 columns
          float* const v = acc[row] + 4 * i;
          if (add) {
            const float4 before = *sum;
            v[0] += before.x, v[1] += before.y, v[2] += before.z, v[3] += before.w;
          }
          *sum = make_float4(v[0], v[1], v[2], v[3]);
          v[0] = v[1] = v[2] = v[3] = 0.0f;
        }
      }
      add = true;
      until_promotion = WeightGradientConfig::kPromoteRows;
      if (done) return;
    }
  }
}

}  // namespace pixels
}  // namespace cuda
}  // namespace tconv
