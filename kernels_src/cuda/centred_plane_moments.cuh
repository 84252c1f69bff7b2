// Moments of pieces of planes as group_norm_plane_moments.cuh has them, but with means in fp64: what rounding one takes
// is no small part of a plane's result where values are far from zero and pieces few.
//   in [batch][channels][plane] -> partials [batch][num_partials][channels]
// One warp per piece of a plane.
#pragma once

#include "group_norm_plane_moments.cuh"

namespace tconv {
namespace cuda {
namespace norm {

struct alignas(16) CentredMoments {  // one load
  double mean;
  float count, m2;
};

__global__ void __launch_bounds__(PlaneMomentsConfig::kThreads)
    centred_plane_moments_kernel(const float* __restrict__ in, CentredMoments* __restrict__ partials,
                                 unsigned num_planes, unsigned channels, int64_t plane, unsigned num_partials) {
  using Config = PlaneMomentsConfig;
  const int lane = threadIdx.x % kWarp;
  const unsigned warp = blockIdx.x * Config::kWarps + threadIdx.x / kWarp;
  const unsigned plane_idx = warp / num_partials, piece = warp % num_partials;
  if (plane_idx >= num_planes) return;
  const int64_t first = int64_t{piece} * Config::kPiece;
  const int count = static_cast<int>(plane - first < Config::kPiece ? plane - first : Config::kPiece);
  in += plane_idx * plane + first;

  float values[Config::kValuesPerLane];
#pragma unroll
  for (int i = 0; i < Config::kValuesPerLane; ++i) values[i] = i * kWarp + lane < count ? in[i * kWarp + lane] : 0.0f;
  CentredMoments m = warp_moments<CentredMoments>(values, count, lane);
  const auto rounded = static_cast<float>(m.mean);
  float deviation = 0;
#pragma unroll
  for (int i = 0; i < Config::kValuesPerLane; ++i)
    if (i * kWarp + lane < count) deviation += values[i] - rounded;
  m.mean += warp_sum(deviation) / m.count;
  const unsigned sample = plane_idx / channels, channel = plane_idx % channels;
  if (lane == 0) partials[(int64_t{sample} * num_partials + piece) * channels + channel] = m;
}

inline int64_t launch_centred_plane_moments(const float* in, CentredMoments* partials, int64_t batch, int64_t channels,
                                            int64_t plane, cudaStream_t stream) {
  using Config = PlaneMomentsConfig;
  const int64_t num_partials = Config::num_partials(plane);
  const int64_t blocks = ceil_div(batch * channels * num_partials, Config::kWarps);
  if (blocks * Config::kWarps > UINT32_MAX) return cudaErrorInvalidConfiguration;  // warps are numbered in 32 bits
  return launch(centred_plane_moments_kernel, blocks, Config::kThreads, stream, in, partials, batch * channels,
                channels, plane, num_partials);
}

}  // namespace norm
}  // namespace cuda
}  // namespace tconv
