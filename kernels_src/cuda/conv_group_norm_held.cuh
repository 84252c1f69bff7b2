// Transposed convolution, element-wise chain and GroupNorm in one kernel on Hopper, from NCHW to NCHW: DRAM sees the
// input once and the output once. A sample's outputs wait in the shared memory of all processors until its statistics
// are known.
//
// A block is one tile of a sample, the same in every sample it works on. Three warpgroups of consumers multiply, a
// segment each, put outputs through the chain and into shared memory, and store those of the sample before once its
// statistics are there; producers keep a ring of chunks of the window full; one warp agrees with the sample's other
// blocks on mean and variance, loads weights, and brings samples to L2. docs/kernels.md follows a value through.
#pragma once

#include "conv_group_norm_held_consumers.cuh"
#include "conv_group_norm_held_producers.cuh"
#include "conv_group_norm_held_statistics.cuh"

namespace tconv {
namespace cuda {
namespace held {

// All blocks must run at once.
template <typename Storage>
__global__ void __launch_bounds__(kThreads, 1) conv_group_norm_held_kernel(const __grid_constant__ Args<Storage> args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char smem[];
  const Shared shared(args.plan, hopper::smem_address(smem));
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Place place(args.plan);
  if (threadIdx.x == 0) {
    store_word(shared.place, place.first_sample);
    store_word(shared.place + 4, place.strip);
    store_word(shared.place + 8, place.tile);
    for (int stage = 0; stage < args.plan.num_weight_stages; ++stage) {
      hopper::mbarrier_init(shared.weights_full + 8 * stage, 1);
      hopper::mbarrier_init(shared.weights_empty + 8 * stage, 4 * kSegments);
    }
    for (int stage = 0; stage < args.plan.num_stages; ++stage) {
      hopper::mbarrier_init(shared.chunk_full + 8 * stage, kProducerWarps);
      hopper::mbarrier_init(shared.chunk_empty + 8 * stage, 4 * kSegments);
    }
    hopper::mbarrier_init(shared.moments_full, 32 * 4 * kSegments);
    hopper::mbarrier_init(shared.affine_full, 32);
    hopper::fence_barrier_init();
  }
  fill_offsets(args, shared, place);
  if (warp == 0) fill_parameters(args, shared, lane);
  if (Rounds<true, Storage>::kWholeSectors && args.pair_stores) fill_splits(args, shared, place, threadIdx.x);
  __syncthreads();

  // Told to the compiler as the same for a warp: what follows from it goes to uniform registers.
  const int warpgroup = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0);
  if (warpgroup > 0) {
    hopper::set_registers<kLaunchRegisters, kConsumerRegisters>();
    if (args.pair_stores) {
      consume<true>(args, shared, place, warpgroup - 1);
    } else {
      consume<false>(args, shared, place, warpgroup - 1);
    }
  } else {
    hopper::set_registers<kLaunchRegisters, kOtherRegisters>();
    if (warp == kProducerWarps) {
      agree_and_load(args, shared, place, lane);
    } else if (args.whole_quads) {
      produce_chunks<8 / sizeof(Storage), true>(args, shared, place, warp, lane);
    } else {
      produce_chunks<1, false>(args, shared, place, warp, lane);
    }
  }
#endif
}

}  // namespace held
}  // namespace cuda
}  // namespace tconv
