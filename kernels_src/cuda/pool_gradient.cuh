// The gradient of what BatchNorm read, from that of the windows' maxima: nothing else of a window has one, but the
// batch's statistics give every value its share. Bound by memory.
#pragma once

#include "batch_norm_gradient.cuh"
#include "pool_windows.cuh"

namespace tconv {
namespace cuda {

// kPairs: as in pool_maxima.cuh; the image may have a row more than its windows.
template <bool kPairs, typename S>
__global__ void __launch_bounds__(PoolGradientConfig::kThreads)
    pool_gradient_kernel(const __grid_constant__ PoolGradientArgs<S> args) {
  using Acc = typename StorageTraits<S>::Acc;
  const int64_t count = args.planes * args.cells.rows * args.cells.cols;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; index < count; index += step) {
    const PoolPlace place = args.cells.place(index);
    const auto of_channel = static_cast<const BatchNormCoefficients<Acc>*>(args.coefficients)[place.channel];
    int winner = -1;
    Acc of_winner = 0;
    if (place.row < args.windows.rows && place.col < args.windows.cols) {
      const int64_t window = (place.plane * args.windows.rows + place.row) * args.windows.cols + place.col;
      winner = args.winners[window];
      of_winner = of_channel.scale * norm::to_acc(args.grad[window]);
    }
    const int64_t top = place.row * args.stride_h, left = place.col * args.stride_w;
    const int64_t row = place.plane * args.height + top, first = row * args.width + left;
    S* const to = args.grad_value + row * args.row_columns + left;
    // The last cell of a row writes the zeros behind it, too.
    const int zeros = place.col + 1 == args.cells.cols ? static_cast<int>(args.row_columns - args.width) : 0;
    const auto gradient = [&](S value, bool wins) {
      Acc result = wins ? of_winner : Acc(0);
      if (args.batch_stats) result += of_channel.slope * (norm::to_acc(value) - of_channel.mean) + of_channel.shift;
      return to_storage<S>(result);
    };
    if constexpr (kPairs) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if (top + i >= args.height) break;
        PoolPair<S> pair{};
        if (args.batch_stats) pair = *reinterpret_cast<const PoolPair<S>*>(args.value + first + i * args.width);
#pragma unroll
        for (int j = 0; j < 2; ++j) pair.values[j] = gradient(pair.values[j], winner == 2 * i + j);
        *reinterpret_cast<PoolPair<S>*>(to + i * args.row_columns) = pair;
        if (zeros > 0) *reinterpret_cast<PoolPair<S>*>(to + i * args.row_columns + 2) = PoolPair<S>{};
      }
    } else {
      for (int i = 0; i < args.stride_h && top + i < args.height; ++i) {
        S* const to_row = to + i * args.row_columns;
        const int columns = static_cast<int>(min(args.width - left, int64_t{args.stride_w}));
        for (int j = 0; j < columns; ++j) {
          const bool wins = j < args.kernel_w && winner == i * args.kernel_w + j;
          to_row[j] = gradient(args.batch_stats ? args.value[first + i * args.width + j] : S{}, wins);
        }
        for (int j = 0; j < zeros; ++j) to_row[columns + j] = S{};
      }
    }
  }
}

}  // namespace cuda
}  // namespace tconv
