// Training-mode BatchNorm statistics: partial moments -> one affine map per channel, and what is kept of the batch.
//   mean, var over samples and pixels (biased), affine[c] = { mean, weight[c] / sqrt(var + eps), bias[c] }
//   running statistics move towards the batch's (../running_statistics.h)
// partials [rows][channels], rows = batch * num_partials. One block per channel, fp64, fixed order.
#pragma once

#include "../running_statistics.h"
#include "group_norm_moments.cuh"

namespace tconv {
namespace cuda {
namespace norm {

// weight and bias: [channels] or null.
template <typename S>
struct BatchNormAffine {
  const S* weight;
  const S* bias;
  double eps;
};

struct BatchNormFinaliseConfig {
  static constexpr int kThreads = 1024;  // few channels, thousands of rows each
};

template <typename S>
__global__ void __launch_bounds__(BatchNormFinaliseConfig::kThreads)
    batch_norm_finalise_kernel(const PartialOf<S>* __restrict__ partials, int64_t rows, int64_t channels,
                               BatchNormAffine<S> affine, ChannelAffine<AccOf<S>>* __restrict__ table,
                               AccOf<S>* __restrict__ batch_mean, AccOf<S>* __restrict__ batch_var,
                               RunningStatistics running) {
  const int64_t channel = blockIdx.x;
  const MomentsF64 m = block_combine(partials + channel, rows, 1, channels);
  if (threadIdx.x != 0) return;
  const double variance = m.m2 / m.count;
  if (batch_mean != nullptr) batch_mean[channel] = static_cast<AccOf<S>>(m.mean);
  if (batch_var != nullptr) batch_var[channel] = static_cast<AccOf<S>>(variance);
  update_running_statistics<AccOf<S>>(running, channel, m);
  table[channel] =
      make_channel_affine<AccOf<S>>(m.mean, 1.0 / sqrt(variance + affine.eps),
                                    parameter_or(affine.weight, channel, 1.0), parameter_or(affine.bias, channel, 0.0));
}

template <typename S>
int64_t launch_batch_norm_finalise(const PartialOf<S>* partials, int64_t rows, int64_t channels,
                                   const BatchNormAffine<S>& affine, ChannelAffine<AccOf<S>>* table,
                                   AccOf<S>* batch_mean, AccOf<S>* batch_var, const RunningStatistics& running,
                                   cudaStream_t stream) {
  return launch(batch_norm_finalise_kernel<S>, channels, BatchNormFinaliseConfig::kThreads, stream, partials, rows,
                channels, affine, table, batch_mean, batch_var, running);
}

}  // namespace norm
}  // namespace cuda
}  // namespace tconv
