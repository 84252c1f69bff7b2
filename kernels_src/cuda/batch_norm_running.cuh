// Eval-mode BatchNorm: running statistics -> one affine map per channel.
//   affine[c] = { running_mean[c], weight[c] / sqrt(running_var[c] + eps), bias[c] }
#pragma once

#include "batch_norm_finalise.cuh"

namespace tconv {
namespace cuda {
namespace norm {

struct BatchNormRunningConfig {
  static constexpr int kThreads = 128;
};

template <typename S>
__global__ void __launch_bounds__(BatchNormRunningConfig::kThreads)
    batch_norm_running_kernel(const AccOf<S>* __restrict__ running_mean, const AccOf<S>* __restrict__ running_var,
                              int64_t channels, BatchNormAffine<S> affine,
                              ChannelAffine<AccOf<S>>* __restrict__ table) {
  const int64_t channel = int64_t{blockIdx.x} * BatchNormRunningConfig::kThreads + threadIdx.x;
  if (channel >= channels) return;
  const double rstd = 1.0 / sqrt(static_cast<double>(running_var[channel]) + affine.eps);
  table[channel] = make_channel_affine<AccOf<S>>(running_mean[channel], rstd,
                                                 parameter_or(affine.weight, channel, 1.0),
                                                 parameter_or(affine.bias, channel, 0.0));
}

template <typename S>
int64_t launch_batch_norm_running(const AccOf<S>* running_mean, const AccOf<S>* running_var, int64_t channels,
                                  const BatchNormAffine<S>& affine, ChannelAffine<AccOf<S>>* table,
                                  cudaStream_t stream) {
  return launch(batch_norm_running_kernel<S>, ceil_div(channels, BatchNormRunningConfig::kThreads),
                BatchNormRunningConfig::kThreads, stream, running_mean, running_var, channels, affine, table);
}

}  // namespace norm
}  // namespace cuda
}  // namespace tconv
