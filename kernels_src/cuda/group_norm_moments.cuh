// Moments within a warp and across a block, and what a normalisation does to one channel.
#pragma once

#include "group_norm_storage.cuh"

namespace tconv {
namespace cuda {
namespace norm {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

// out = (y - mean) * scale + shift. Subtracting first keeps the digits that y * scale + offset would cancel;
// shift also carries what rounding the mean to Acc lost.
template <typename Acc>
struct alignas(16) ChannelAffine {
  Acc mean, scale, shift, unused;

  __device__ __forceinline__ Acc apply(Acc y) const { return (y - mean) * scale + shift; }
};

template <typename Acc>
__device__ __forceinline__ ChannelAffine<Acc> make_channel_affine(double mean, double rstd, double weight,
                                                                  double bias) {
  ChannelAffine<Acc> a;
  const double scale = rstd * weight;
  a.mean = static_cast<Acc>(mean);
  a.scale = static_cast<Acc>(scale);
  const double lost = mean - static_cast<double>(a.mean);
  // An infinite mean loses nothing (and Inf - Inf would), nor does an exact one (0 * Inf would).
  const bool exact = lost == 0 || isinf(mean);
  a.shift = static_cast<Acc>(exact ? bias : bias - lost * scale);
  a.unused = Acc(0);
  return a;
}

template <typename T>
__device__ __forceinline__ T warp_sum(T v) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) v += __shfl_xor_sync(kAllLanes, v, step);
  return v;
}

// Moments of the `count` (>= 1) values a warp holds in registers: value i of lane l is number i * 32 + l.
// Two passes about the mean, so a large mean costs no digits. The same on every lane.
template <typename Partial, typename Acc, int kItems>
__device__ __forceinline__ Partial warp_moments(const Acc (&values)[kItems], int count, int lane) {
  Acc sum = 0;
#pragma unroll
  for (int i = 0; i < kItems; ++i)
    if (i * kWarp + lane < count) sum += values[i];
  const Acc centre = warp_sum(sum) / static_cast<Acc>(count);
  Acc deviation = 0, squares = 0;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (i * kWarp + lane < count) {
      const Acc d = values[i] - centre;
      deviation += d;
      squares += d * d;
    }
  }
  deviation = warp_sum(deviation);
  squares = warp_sum(squares);
  const Acc correction = deviation / static_cast<Acc>(count);
  Partial m;
  m.count = static_cast<Acc>(count);
  m.mean = centre + correction;
  m.m2 = squares - deviation * correction;
  return m;
}

__device__ __forceinline__ void combine_from_lane_below(MomentsF64& m, int step) {
  const double count = __shfl_down_sync(kAllLanes, m.count, step);
  const double mean = __shfl_down_sync(kAllLanes, m.mean, step);
  const double m2 = __shfl_down_sync(kAllLanes, m.m2, step);
  m.combine(count, mean, m2);
}

// Combines rows x cols partials, row_stride apart, in an order that depends on the block size alone.
// blockDim.x is a multiple of 32, at most 1024. The result is whole on thread 0 only.
template <typename Partial>
__device__ __forceinline__ MomentsF64 block_combine(const Partial* __restrict__ partials, int64_t rows, int64_t cols,
                                                    int64_t row_stride) {
  constexpr int kInFlight = 4;
  // Entry e = row * cols + col; the block's stride in (row, col) avoids a division per entry.
  const int64_t row_step = blockDim.x / cols, col_step = blockDim.x % cols;
  int64_t row = threadIdx.x / cols, col = threadIdx.x % cols;
  MomentsF64 m;
  while (row < rows) {
    Partial batch[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      batch[i] = Partial{0, 0, 0};
      if (row < rows) batch[i] = partials[row * row_stride + col];
      row += row_step;
      col += col_step;
      if (col >= cols) {
        col -= cols;
        ++row;
      }
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) m.combine(batch[i].count, batch[i].mean, batch[i].m2);
  }

  __shared__ double warp_results[3][kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) combine_from_lane_below(m, step);
  if (lane == 0) {
    warp_results[0][warp] = m.count;
    warp_results[1][warp] = m.mean;
    warp_results[2][warp] = m.m2;
  }
  __syncthreads();
  if (warp == 0) {
    m = MomentsF64{};
    if (lane < static_cast<int>(blockDim.x) / kWarp)
      m = MomentsF64{warp_results[0][lane], warp_results[1][lane], warp_results[2][lane]};
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) combine_from_lane_below(m, step);
  }
  return m;
}

}  // namespace norm
}  // namespace cuda
}  // namespace tconv
