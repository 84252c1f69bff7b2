// Moments of a tensor already in memory, for dtypes whose convolution cannot hand over exact ones (fp64).
// in [batch][channels][plane] -> partials [batch][num_partials][channels]; one warp per piece of a plane.
#pragma once

#include "group_norm_moments.cuh"

namespace tconv {
namespace cuda {
namespace norm {

struct PlaneMomentsConfig {
  static constexpr int kThreads = 256;
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int kValuesPerLane = 16;
  static constexpr int kPiece = kWarp * kValuesPerLane;

  static int64_t num_partials(int64_t plane) { return ceil_div(plane, kPiece); }
};

template <typename S>
__global__ void __launch_bounds__(PlaneMomentsConfig::kThreads)
    group_norm_plane_moments_kernel(const S* __restrict__ in, PartialOf<S>* __restrict__ partials, unsigned num_planes,
                                    unsigned channels, int64_t plane, unsigned num_partials) {
  using Config = PlaneMomentsConfig;
  const int lane = threadIdx.x % kWarp;
  const unsigned warp = blockIdx.x * Config::kWarps + threadIdx.x / kWarp;
  const unsigned plane_idx = warp / num_partials, piece = warp % num_partials;
  if (plane_idx >= num_planes) return;
  const int64_t first = int64_t{piece} * Config::kPiece;
  const int count = static_cast<int>(plane - first < Config::kPiece ? plane - first : Config::kPiece);
  in += plane_idx * plane + first;

  AccOf<S> values[Config::kValuesPerLane];
#pragma unroll
  for (int i = 0; i < Config::kValuesPerLane; ++i)
    values[i] = i * kWarp + lane < count ? to_acc(in[i * kWarp + lane]) : AccOf<S>(0);
  const PartialOf<S> m = warp_moments<PartialOf<S>>(values, count, lane);
  const unsigned sample = plane_idx / channels, channel = plane_idx % channels;
  if (lane == 0) partials[(int64_t{sample} * num_partials + piece) * channels + channel] = m;
}

template <typename S>
int64_t launch_group_norm_plane_moments(const S* in, PartialOf<S>* partials, int64_t batch, int64_t channels,
                                        int64_t plane, cudaStream_t stream) {
  using Config = PlaneMomentsConfig;
  const int64_t num_partials = Config::num_partials(plane);
  const int64_t blocks = ceil_div(batch * channels * num_partials, Config::kWarps);
  if (blocks * Config::kWarps > UINT32_MAX) return cudaErrorInvalidConfiguration;  // warps are numbered in 32 bits
  return launch(group_norm_plane_moments_kernel<S>, blocks, Config::kThreads, stream, in, partials, batch * channels,
                channels, plane, num_partials);
}

}  // namespace norm
}  // namespace cuda
}  // namespace tconv
