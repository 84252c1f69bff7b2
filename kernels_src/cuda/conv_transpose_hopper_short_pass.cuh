// The products of a pass of few taps, or of few channels, where what lies around them takes longer than they do: loops
// of little else.
#pragma once

#include "conv_transpose_hopper_args.cuh"

namespace tconv {
namespace cuda {
namespace hopper {

// Of more columns products take longer than all else, and accumulators leave no registers.
constexpr bool has_short_passes(int n) { return n <= 128; }

// Of such a kernel: a window's blocks of channels are in the ring side by side, with all of their taps.
template <typename Storage>
__device__ __forceinline__ bool multiplies_short_passes(const HopperArgs<Storage>& args) {
#ifdef TCONV_SKIPS_TAPS
  return args.plan.num_ic_blocks == args.plan.ring_ic_blocks && !args.packed.taps.any_short();
#else
  return args.plan.num_ic_blocks == args.plan.ring_ic_blocks;
#endif
}

// Weight stages of a warpgroup's block, where they are not resident.
struct WeightRing {
  RingCursor next;
  int first, last;
  uint32_t hand_over;  // the other warpgroup's turn, which begins before the pass's last tap; or 0
};

// A pass whose window is there and stays in the ring. a: the first weights' descriptor where they are resident; else
// they come through `weights`. pixel: of the ring, where the segment's window begins. multiply(steps, accumulators, a,
// b): a tap; with_steps(channels, f): f(steps) for a block with so many channels left.
template <bool kStreams, int kParts, int kAccumulators, typename Multiply, typename WithSteps>
__device__ __forceinline__ void multiply_pass(const Plan& plan, const Shared& shared, uint32_t ring_low,
                                              uint32_t weights_low, uint32_t a, int pixel, int phase_index,
                                              WeightRing& weights, float (&acc)[kParts][kAccumulators],
                                              Multiply&& multiply, WithSteps&& with_steps) {
  const int ring_pixels = plan.ring_units * kUnitPixels, row_step = plan.tap_step_h * plan.pitch;
  const auto wrapped = [ring_pixels](int pixel) { return pixel >= ring_pixels ? pixel - ring_pixels : pixel; };
  const uint32_t tap_step = plan.blocks_per_sweep * (kTapBytes >> 4);
  const bool elected = threadIdx.x % 32 == 0;
#pragma unroll
  for (int part = 0; part < kParts; ++part) {
    const Phase& phase = plan.phases[phase_index + part];
    const int taps_h = phase.taps_h, taps_w = phase.taps_w;
    if (taps_h == 0) continue;
    const bool ends = part == kParts - 1 || plan.phases[phase_index + kParts - 1].taps_h == 0;
    int to_hand_over = ends && weights.hand_over != 0 ? taps_h * taps_w * plan.num_ic_blocks : -1;
    int previous = -1;
    const int first = wrapped(pixel + phase.first_pixel);
    uint32_t window = ring_low;
#pragma unroll 1
    for (int left = plan.in_channels_per_group; left > 0; left -= kBlockIC) {
      with_steps(left, [&](auto steps) {
        int row = first, rows_left = taps_h;
#pragma unroll 1
        do {
          int at = row, taps_left = taps_w;
#pragma unroll 1
          do {
            if constexpr (kStreams) {
              if (--to_hand_over == 0 && elected) mbarrier_arrive(weights.hand_over);
              mbarrier_wait(shared.weight_full + 8 * weights.next.slot, weights.next.parity);
              a = weights_low + weights.next.slot * (kTapBytes >> 4);
            }
            multiply(steps, acc[part], a, window + at * (kPixelBytes >> 4));
            if constexpr (kStreams) {
              wgmma_wait<1>();  // the tap before this one is done with its stage
              if (previous >= 0 && elected) mbarrier_arrive(shared.weight_empty + 8 * previous);
              previous = weights.next.slot;
              const bool wraps = previous == weights.last;
              weights.next.slot = wraps ? weights.first : previous + 1;
              weights.next.parity ^= wraps ? 1 : 0;
            } else {
              a += tap_step;
            }
            at = wrapped(at + plan.tap_step_w);
          } while (--taps_left > 0);
          row = wrapped(row + row_step);
        } while (--rows_left > 0);
      });
      window += plan.ring_block_pixels * (kPixelBytes >> 4);
    }
    wgmma_wait<0>();
    if (kStreams && previous >= 0 && elected) mbarrier_arrive(shared.weight_empty + 8 * previous);
  }
}

}  // namespace hopper
}  // namespace cuda
}  // namespace tconv
