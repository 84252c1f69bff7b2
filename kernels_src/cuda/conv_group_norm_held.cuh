// Transposed convolution, element-wise chain and GroupNorm in one kernel on Hopper, from NCHW to NCHW: DRAM sees the input once and
// the output once. A sample's outputs wait in the shared memory of all processors until its statistics are known.
//
// A block is one tile of a sample, the same in every sample it works on. Three warpgroups of consumers multiply, a segment each,
// put outputs through the chain and into shared memory, and store those of the sample before once its statistics are there;
// producers keep a ring of chunks of the window full; one warp agrees with the sample's other blocks on mean and variance.
// README.md follows a value through.
#pragma once

#include "conv_group_norm_held_consumers.cuh"
#include "conv_group_norm_held_producers.cuh"
#include "conv_group_norm_held_statistics.cuh"

namespace tconv {
namespace cuda {
namespace held {

// All blocks must run at once.
template <typename Storage>
__global__ void __launch_bounds__(kThreads, 1) conv_group_norm_held_sm90(const __grid_constant__ Args<Storage> args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ __align__(1024) unsigned char smem[];
  const Shared shared(args.plan, sm90::smem_address(smem));
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    sm90::mbarrier_init(shared.weights_full, 1);
    for (int stage = 0; stage < kStages; ++stage) {
      sm90::mbarrier_init(shared.chunk_full + 8 * stage, kProducerWarps);
      sm90::mbarrier_init(shared.chunk_empty + 8 * stage, 4 * kSegments);
    }
    sm90::mbarrier_init(shared.moments_full, 4 * kSegments);
    sm90::mbarrier_init(shared.affine_full, 1);
    sm90::fence_barrier_init();
  }
  const Place place(args.plan);
  __syncthreads();

  // Told to the compiler as the same for a warp: what follows from it goes to uniform registers.
  const int warpgroup = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0);
  if (warpgroup < kSegments) {
    sm90::set_registers<kLaunchRegisters, kConsumerRegisters>();
    consume(args, shared, place, warpgroup);
  } else {
    sm90::set_registers<kLaunchRegisters, kOtherRegisters>();
    const int producer = warp - 4 * kSegments;
    if (producer == kProducerWarps) {
      agree(args, shared, place, lane);
      return;
    }
    if (producer == 0 && lane == 0) produce_weights(args, shared);
    __syncwarp();
    if (args.whole_quads) {
      produce_chunks<2, true>(args, shared, place, producer, lane);
    } else {
      produce_chunks<1, false>(args, shared, place, producer, lane);
    }
  }
#endif
}

}  // namespace held
}  // namespace cuda
}  // namespace tconv
