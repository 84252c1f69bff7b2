// Of each window the value whose BatchNorm is largest, by PyTorch's rule: the first of equal ones, NaN above all, the
// last NaN. The activation never falls, so that its maximum is there, too. Bound by memory.
#pragma once

#include "pool_windows.cuh"

namespace tconv {
namespace cuda {

// kPairs: windows of 2 x 2, side by side, whose rows are aligned pairs.
template <bool kPairs, typename S>
__global__ void __launch_bounds__(PoolGradientConfig::kThreads)
    pool_maxima_kernel(const __grid_constant__ PoolGradientArgs<S> args) {
  using Acc = typename StorageTraits<S>::Acc;
  const int64_t count = args.planes * args.windows.rows * args.windows.cols;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; index < count; index += step) {
    const PoolPlace place = args.windows.place(index);
    const norm::ChannelAffine<Acc> map = args.maps[place.channel];
    const int64_t top = place.row * args.stride_h, left = place.col * args.stride_w;
    const S* const first = args.value + (place.plane * args.height + top) * args.width + left;
    S winning = first[0];
    int winner = 0;
    Acc best = map.apply(norm::to_acc(winning));
    const auto take = [&](S value, int number) {
      const Acc mapped = map.apply(norm::to_acc(value));
      if (!(mapped > best || mapped != mapped)) return;
      best = mapped, winning = value, winner = number;
    };
    if constexpr (kPairs) {
      const auto above = *reinterpret_cast<const PoolPair<S>*>(first);
      const auto below = *reinterpret_cast<const PoolPair<S>*>(first + args.width);
      take(above.values[1], 1), take(below.values[0], 2), take(below.values[1], 3);
    } else {
      for (int i = 0; i < args.kernel_h && top + i < args.height; ++i)
        for (int j = 0; j < args.kernel_w && left + j < args.width; ++j)
          if (i + j > 0) take(first[i * args.width + j], i * args.kernel_w + j);
    }
    args.maxima[index] = winning;
    args.winners[index] = static_cast<uint8_t>(winner);
  }
}

}  // namespace cuda
}  // namespace tconv
