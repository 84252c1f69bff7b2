// Weights of the kernel that holds a sample's outputs: a row of taps of a chunk at a time, the same for every sample,
// from L2 into a ring of such rows.
#pragma once

#include "conv_group_norm_held_args.cuh"

namespace tconv {
namespace cuda {
namespace held {

// In the ring's order, by one warp's first lane.
struct WeightsLoader {
  int rows_left, row = 0;
  hopper::RingCursor stage;

  template <typename Storage>
  __device__ __forceinline__ WeightsLoader(const Args<Storage>& args, int samples, int lane)
      : rows_left(lane == 0 ? samples * args.plan.weight_rows() : 0) {}

  // Loads the next row if its stage has been given back.
  template <typename Storage>
  __device__ __forceinline__ void load_if_free(const Args<Storage>& args, const Shared& shared) {
    if (rows_left > 0 && hopper::mbarrier_passed(shared.weights_empty + 8 * stage.slot, stage.parity ^ 1)) {
      const int bytes = args.plan.weight_stage_bytes;
      const uint32_t full = shared.weights_full + 8 * stage.slot;
      hopper::mbarrier_arrive_expect_bytes(full, bytes);
      hopper::bulk_load(shared.weights + stage.slot * bytes,
                        reinterpret_cast<const char*>(args.weight_tiles) + row * bytes, bytes, full);
      stage.next(args.plan.num_weight_stages);
      --rows_left;
      if (++row == args.plan.weight_rows()) row = 0;
    }
    __syncwarp();
  }
};

}  // namespace held
}  // namespace cuda
}  // namespace tconv
