// Weights of the kernel that holds a sample's outputs: a row of taps of a chunk at a time, the same for every sample, from L2 into a
// ring of such rows.
#pragma once

#include "conv_group_norm_held_args.cuh"

namespace tconv {
namespace cuda {
namespace held {

// Who loads them. fp32 has room for few rows, for which the warp that agrees is at times too late; in 16 bits there is room for
// most, and producers, whose loads are half as long, have better things to do.
template <typename Storage>
constexpr bool kProducersLoadWeights = sizeof(Storage) == 4;

// One row in kLoaders, in the ring's order. By a warp's first lane alone: votes would cost producers more than this does.
template <int kLoaders>
struct WeightsLoader {
  int rows_left, row, slot;
  uint32_t parity = 1;

  template <typename Storage>
  __device__ __forceinline__ WeightsLoader(const Args<Storage>& args, int samples, int loader, int lane)
      : rows_left(lane == 0 ? samples * args.plan.weight_rows() - loader : 0), row(loader), slot(loader) {
    wrap(args.plan);
  }

  // Loads the next row if its stage has been given back.
  template <typename Storage>
  __device__ __forceinline__ void load_if_free(const Args<Storage>& args, const Shared& shared) {
    if (rows_left > 0 && sm90::mbarrier_passed(shared.weights_empty + 8 * slot, parity)) {
      const int bytes = args.plan.weight_stage_bytes;
      const uint32_t full = shared.weights_full + 8 * slot;
      sm90::mbarrier_arrive_expect_bytes(full, bytes);
      sm90::bulk_load(shared.weights + slot * bytes, reinterpret_cast<const char*>(args.weight_tiles) + row * bytes, bytes, full);
      rows_left -= kLoaders, row += kLoaders, slot += kLoaders;
      wrap(args.plan);
    }
    __syncwarp();
  }

 private:
  __device__ __forceinline__ void wrap(const Plan& plan) {
    while (row >= plan.weight_rows()) row -= plan.weight_rows();
    if (slot >= plan.num_weight_stages) slot -= plan.num_weight_stages, parity ^= 1;
  }
};
static_assert(kMinWeightStages >= kProducerWarps, "a loader's next stage is at most one lap on");

}  // namespace held
}  // namespace cuda
}  // namespace tconv
