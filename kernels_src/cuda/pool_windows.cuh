// Max-pool's windows, which do not overlap, and the cells of stride_h x stride_w values that they lie in: all of the
// image belongs to one cell each.
#pragma once

#include "../batch_norm_pool_gradient_call.h"
#include "fast_divisor.h"
#include "group_norm_moments.cuh"

namespace tconv {
namespace cuda {

struct PoolGradientConfig {
  static constexpr int kThreads = 256;
  static constexpr int kMaxBlocks = 65536;  // which then take several windows

  static dim3 blocks(int64_t units) {
    const int64_t blocks = (units + kThreads - 1) / kThreads;
    return dim3(static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks));
  }
};

// A window or cell of a plane.
struct PoolPlace {
  int64_t plane, channel, row, col;
};

// What divides a number into plane, row and column of `rows` x `cols` in each plane.
struct PoolGrid {
  int64_t rows, cols, channels;
  FastDivisor64 by_plane, by_cols, by_channels;

  static PoolGrid make(int64_t rows, int64_t cols, int64_t channels) {
    return {rows,
            cols,
            channels,
            FastDivisor64::make(static_cast<uint64_t>(rows * cols)),
            FastDivisor64::make(static_cast<uint64_t>(cols)),
            FastDivisor64::make(static_cast<uint64_t>(channels))};
  }

  __device__ __forceinline__ PoolPlace place(int64_t index) const {
    const int64_t plane = by_plane.quotient(index), within = index - plane * rows * cols;
    const int64_t row = by_cols.quotient(within);
    return {plane, plane - by_channels.quotient(plane) * channels, row, within - row * cols};
  }
};

template <typename S>
struct PoolGradientArgs {
  using Acc = typename StorageTraits<S>::Acc;
  const S* value;                        // [planes][height][width]
  S* maxima;                             // [planes][pooled_h][pooled_w]: each window's value with the largest map
  uint8_t* winners;                      // ... and its number in the window
  const norm::ChannelAffine<Acc>* maps;  // [channels]
  const S* grad;                         // [planes][pooled_h][pooled_w], of the maxima's maps
  const void* coefficients;              // BatchNormCoefficients<Acc>[channels]
  S* grad_value;                         // [planes][height][width]
  int64_t planes, height, width;
  int64_t row_columns;  // of grad_value: width, or more, and zeros behind it
  int kernel_h, kernel_w, stride_h, stride_w;
  PoolGrid windows, cells;
  bool batch_stats;
};

// The two values that lie side by side in a row of a 2 x 2 window, loaded at once.
template <typename S>
struct alignas(2 * sizeof(S)) PoolPair {
  S values[2];
};

}  // namespace cuda
}  // namespace tconv
