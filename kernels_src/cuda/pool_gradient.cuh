// The gradient of what BatchNorm read, from that of the windows' maxima: nothing else of a window has one, but the
// batch's statistics give every value its share. Bound by memory.
#pragma once

#include "batch_norm_gradient.cuh"
#include "pool_windows.cuh"

namespace tconv {
namespace cuda {

// kPairs: as in pool_maxima.cuh; the image may have a row more than its windows. A thread takes kAtOnce cells, all of
// whose values are under way before the first is written.
template <bool kPairs, typename S>
__global__ void __launch_bounds__(PoolGradientConfig::kThreads)
    pool_gradient_kernel(const __grid_constant__ PoolGradientArgs<S> args) {
  using Acc = typename StorageTraits<S>::Acc;
  constexpr int kAtOnce = kPairs ? PoolGradientConfig::kAtOnce : 1;
  const int64_t count = args.planes * args.cells.rows * args.cells.cols;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t begin = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; begin < count;
       begin += kAtOnce * step) {
    BatchNormCoefficients<Acc> of_channel[kAtOnce];
    int winner[kAtOnce];
    int64_t top[kAtOnce], left[kAtOnce], first[kAtOnce];
    Acc of_winner[kAtOnce];
    PoolPair<S> pairs[kAtOnce][2];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int64_t index = begin + k * step;
      top[k] = args.height;  // nothing to do
      if (index >= count) continue;
      const PoolPlace place = args.cells.place(index);
      of_channel[k] = static_cast<const BatchNormCoefficients<Acc>*>(args.coefficients)[place.channel];
      winner[k] = -1, of_winner[k] = 0;
      if (place.row < args.windows.rows && place.col < args.windows.cols) {
        const int64_t window = (place.plane * args.windows.rows + place.row) * args.windows.cols + place.col;
        winner[k] = args.winners[window];
        of_winner[k] = of_channel[k].scale * norm::to_acc(args.grad[window]);
      }
      top[k] = place.row * args.stride_h, left[k] = place.col * args.stride_w;
      first[k] = (place.plane * args.height + top[k]) * args.width + left[k];
      if constexpr (kPairs)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          if (args.batch_stats && top[k] + i < args.height)
            pairs[k][i] = *reinterpret_cast<const PoolPair<S>*>(args.value + first[k] + i * args.width);
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const auto gradient = [&](S value, bool wins) {
        Acc result = wins ? of_winner[k] : Acc(0);
        if (args.batch_stats)
          result += of_channel[k].slope * (norm::to_acc(value) - of_channel[k].mean) + of_channel[k].shift;
        return to_storage<S>(result);
      };
      if constexpr (kPairs) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (top[k] + i >= args.height) break;
          PoolPair<S> made;
#pragma unroll
          for (int j = 0; j < 2; ++j) made.values[j] = gradient(pairs[k][i].values[j], winner[k] == 2 * i + j);
          *reinterpret_cast<PoolPair<S>*>(args.grad_value + first[k] + i * args.width) = made;
        }
      } else {
        for (int i = 0; i < args.stride_h && top[k] + i < args.height; ++i)
          for (int j = 0; j < args.stride_w && left[k] + j < args.width; ++j) {
            const int64_t at = first[k] + i * args.width + j;
            const bool wins = j < args.kernel_w && winner[k] == i * args.kernel_w + j;
            args.grad_value[at] = gradient(args.batch_stats ? args.value[at] : S{}, wins);
          }
      }
    }
  }
}

}  // namespace cuda
}  // namespace tconv
