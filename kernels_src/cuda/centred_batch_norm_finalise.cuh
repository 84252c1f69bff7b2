// Of training-mode BatchNorm whose result has each plane's mean taken away: partial moments -> one affine map for each
// channel of a sample, and what is kept of the batch. BatchNorm's bias and the batch's mean are the same all over a
// plane, so that they cancel:
//   affine[n][c] = { mean of the plane, weight[c] / sqrt(var[c] + eps), 0 },   var over samples and pixels (biased)
//   running statistics move towards the batch's (../running_statistics.h)
// partials [batch][num_partials][channels]; one block per channel, fp64, fixed order.
#pragma once

#include "batch_norm_finalise.cuh"
#include "centred_plane_moments.cuh"

namespace tconv {
namespace cuda {
namespace norm {

struct CentredBatchNormFinaliseConfig {
  static constexpr int kThreads = 1024;
  static constexpr int kPartialsPerThread = 4;

  // Threads that share a plane, a power of two: others take other planes beside them.
  static int threads_per_plane(int64_t num_partials) {
    int threads = 1;
    while (threads < kThreads && threads * kPartialsPerThread < num_partials) threads *= 2;
    return threads;
  }
};

// The mean of a plane, by as many threads as share one, of which the first gets it. All of the block come here.
// there: has this thread a plane? partials: of that; of_warps: an entry for each warp.
__device__ __forceinline__ double plane_mean(const CentredMoments* __restrict__ partials, bool there,
                                             int64_t num_partials, int64_t channels, int threads_per_plane,
                                             double (*of_warps)[2]) {
  const int place = static_cast<int>(threadIdx.x) % threads_per_plane;
  double count = 0, sum = 0;
#pragma unroll 4
  for (int64_t piece = place; there && piece < num_partials; piece += threads_per_plane) {
    const CentredMoments p = partials[piece * channels];
    count += p.count;
    sum += static_cast<double>(p.count) * p.mean;
  }
  for (int step = (threads_per_plane < kWarp ? threads_per_plane : kWarp) / 2; step > 0; step /= 2) {
    count += __shfl_xor_sync(kAllLanes, count, step);
    sum += __shfl_xor_sync(kAllLanes, sum, step);
  }
  if (threads_per_plane > kWarp) {  // so it is for all of the block
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    __syncthreads();  // those of the planes before have been read
    if (threadIdx.x % kWarp == 0) of_warps[warp][0] = count, of_warps[warp][1] = sum;
    __syncthreads();
    count = sum = 0;
    for (int other = 0; place == 0 && other < threads_per_plane / kWarp; ++other) {
      count += of_warps[warp + other][0];
      sum += of_warps[warp + other][1];
    }
  }
  return sum / count;
}

// table: [batch][channels].
__global__ void __launch_bounds__(CentredBatchNormFinaliseConfig::kThreads)
    centred_batch_norm_finalise_kernel(const CentredMoments* __restrict__ partials, int64_t batch, int64_t num_partials,
                                       int64_t channels, int threads_per_plane, BatchNormAffine<float> affine,
                                       ChannelAffine<float>* __restrict__ table, RunningStatistics running) {
  __shared__ double of_warps[CentredBatchNormFinaliseConfig::kThreads / kWarp][2];
  const int64_t channel = blockIdx.x;
  const MomentsF64 m = block_combine(partials + channel, batch * num_partials, 1, channels);
  if (threadIdx.x == 0) update_running_statistics<float>(running, channel, m);
  const double rstd = 1.0 / sqrt(m.m2 / m.count + affine.eps);
  const double weight = parameter_or(affine.weight, channel, 1.0), bias = parameter_or(affine.bias, channel, 0.0);
  // An infinite bias leaves NaN. So does an infinite weight: a plane's mean is infinite or NaN, as its values are.
  const double cancelled = (bias - bias) + (weight - weight);
  const int planes = CentredBatchNormFinaliseConfig::kThreads / threads_per_plane;
  for (int64_t first = 0; first < batch; first += planes) {
    const int64_t sample = first + static_cast<int>(threadIdx.x) / threads_per_plane;
    const double mean = plane_mean(partials + sample * num_partials * channels + channel, sample < batch, num_partials,
                                   channels, threads_per_plane, of_warps);
    if (sample < batch && threadIdx.x % threads_per_plane == 0)
      table[sample * channels + channel] = make_channel_affine<float>(mean, rstd, weight, cancelled);
  }
}

inline int64_t launch_centred_batch_norm_finalise(const CentredMoments* partials, int64_t batch, int64_t num_partials,
                                                  int64_t channels, const BatchNormAffine<float>& affine,
                                                  ChannelAffine<float>* table, const RunningStatistics& running,
                                                  cudaStream_t stream) {
  using Config = CentredBatchNormFinaliseConfig;
  return launch(centred_batch_norm_finalise_kernel, channels, Config::kThreads, stream, partials, batch, num_partials,
                channels, Config::threads_per_plane(num_partials), affine, table, running);
}

}  // namespace norm
}  // namespace cuda
}  // namespace tconv
