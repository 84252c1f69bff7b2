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

// Sums over the block of kCount values at a time, the same on every thread: within warps in Acc, across them in fp64.
// `scratch` has an entry per warp and must not be in use.
template <int kCount, typename Acc>
__device__ __forceinline__ void block_sums(const Acc (&values)[kCount], double (*scratch)[kCount],
                                           double (&sums)[kCount]) {
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    const Acc sum = warp_sum(values[k]);
    if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp][k] = sum;
    sums[k] = 0;
  }
  __syncthreads();
  for (int warp = 0; warp < static_cast<int>(blockDim.x) / kWarp; ++warp)
#pragma unroll
    for (int k = 0; k < kCount; ++k) sums[k] += scratch[warp][k];
}

// Combines rows x cols partials, row_stride apart, in an order that depends on the block size alone: the mean first,
// then the squared deviations from it. blockDim.x is a multiple of 32, at most 1024. The same on every thread.
template <typename Partial>
__device__ __forceinline__ MomentsF64 block_combine(const Partial* __restrict__ partials, int64_t rows, int64_t cols,
                                                    int64_t row_stride) {
  constexpr int kInFlight = 4;
  // Entry e = row * cols + col; the block's stride in (row, col) avoids a division per entry.
  const int64_t row_step = blockDim.x / cols, col_step = blockDim.x % cols;
  Partial batch[kInFlight];
  const bool one_batch = rows * cols <= int64_t{kInFlight} * blockDim.x;  // kept from the first time to the second
  const auto for_each = [&](bool again, auto&& take) {
    int64_t row = threadIdx.x / cols, col = threadIdx.x % cols;
    do {
      if (!(again && one_batch)) {
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
      }
#pragma unroll
      for (int i = 0; i < kInFlight; ++i) take(batch[i]);
    } while (row < rows && !one_batch);
  };
  __shared__ double first[kWarp][2], second[kWarp][1];
  double counted[2] = {0, 0}, totals[2];
  for_each(false, [&](const Partial& p) {
    counted[0] += p.count;
    counted[1] += static_cast<double>(p.count) * p.mean;
  });
  block_sums(counted, first, totals);
  MomentsF64 m;
  m.count = totals[0];
  m.mean = totals[0] > 0 ? totals[1] / totals[0] : 0;
  double squares[1] = {0}, m2[1];
  for_each(true, [&](const Partial& p) {
    const double d = p.mean - m.mean;
    if (p.count > 0) squares[0] += p.m2 + p.count * d * d;
  });
  block_sums(squares, second, m2);
  m.m2 = m2[0];
  return m;
}

}  // namespace norm
}  // namespace cuda
}  // namespace tconv
