// The data warps of the Hopper convolution in turns, whose pixels have half the time.
#pragma once

#include "conv_transpose_hopper_producers.cuh"

namespace tconv {
namespace cuda {
namespace hopper {

// Whole batches of 16-bit values, kSets of a warp under way at a time.
template <int kSets, typename Storage>
__device__ __forceinline__ void produce_batches_ahead(const HopperArgs<Storage>& args, const Shared& shared, int warp,
                                                      int data_warps, int lane) {
  BatchWalk<Storage> walk(args, warp);
  const InputScale scale(args.guard);
  const bool both = args.channel_halves == 2;
  Storage values[kSets][2][8][kVectorPixels];
  RingCursor rings[kSets];
  bool loaded[kSets];
#pragma unroll
  for (int set = 0; set < kSets; ++set) {
    loaded[set] = !walk.done();
    if (!loaded[set]) continue;
    const BatchSource<Storage> source(walk, lane);
    load_half<true>(args, source, 0, values[set][0]);
    if (both) load_half<true>(args, source, 1, values[set][1]);
    rings[set] = walk.ring;
    walk.step(data_warps);
  }
  for (;;) {
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
      if (!loaded[set]) return;
      const BatchPlace place(args, rings[set]);
      const uint32_t parity = rings[set].parity;
      // The loads that reuse the registers of what is stored here are under way meanwhile.
      const bool more = !walk.done();
      const BatchSource<Storage> source(walk, lane);
      rings[set] = walk.ring;
      loaded[set] = more;
      if (more) walk.step(data_warps);
      uint4 pixels[kVectorPixels];
      convert_half(args.guard, scale, values[set][0], pixels);
      if (more) load_half<true>(args, source, 0, values[set][0]);
      await_free(shared, place, parity);
      store_half(args, shared, place, 0, lane, pixels);
      if (both) {
        convert_half(args.guard, scale, values[set][1], pixels);
        if (more) load_half<true>(args, source, 1, values[set][1]);
        store_half(args, shared, place, 1, lane, pixels);
      }
      report_full(shared, place);
    }
  }
}

template <typename Storage>
__device__ __forceinline__ void produce_pixels_of_turns(const HopperArgs<Storage>& args, const Shared& shared, int warp,
                                                        int data_warps, int lane) {
  if (!args.whole_batches) return produce_pixels<1, false>(args, shared, warp, data_warps, lane);
  if constexpr (sizeof(Storage) == 2) {
    produce_batches_ahead<2>(args, shared, warp, data_warps, lane);
  } else {
    produce_pixels<2, true>(args, shared, warp, data_warps, lane);
  }
}

}  // namespace hopper
}  // namespace cuda
}  // namespace tconv
