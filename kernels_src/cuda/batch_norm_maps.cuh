// BatchNorm as one affine map per channel, for the kernel that applies it. Batch statistics come as a table from
// batch_norm_finalise.cuh; running statistics are known before, so that whoever wants a map works it out, with no
// kernel between:
//   affine[c] = { running_mean[c], weight[c] / sqrt(running_var[c] + eps), bias[c] }
#pragma once

#include "batch_norm_finalise.cuh"

namespace tconv {
namespace cuda {
namespace norm {

template <typename S>
struct BatchNormMaps {
  const ChannelAffine<AccOf<S>>* table;  // [channels], or null where the statistics are running ones
  const AccOf<S>* running_mean;          // [channels]
  const AccOf<S>* running_var;
  BatchNormAffine<S> affine;

  __device__ __forceinline__ ChannelAffine<AccOf<S>> of_channel(int64_t channel) const {
    if (table != nullptr) return table[channel];
    // In the accumulation type, as PyTorch: fp64 takes registers that hold values.
    const AccOf<S> scale = rsqrt(running_var[channel] + static_cast<AccOf<S>>(affine.eps));
    return {running_mean[channel], affine.weight != nullptr ? scale * to_acc(affine.weight[channel]) : scale,
            affine.bias != nullptr ? to_acc(affine.bias[channel]) : AccOf<S>(0), AccOf<S>(0)};
  }
};

}  // namespace norm
}  // namespace cuda
}  // namespace tconv
