// Of each window the value whose BatchNorm is largest, by PyTorch's rule: the first of equal ones, NaN above all, the
// last NaN. The activation never falls, so that its maximum is there, too. Bound by memory.
#pragma once

#include "pool_windows.cuh"

namespace tconv {
namespace cuda {

// Of the window at this row and column of an image, and its number in it. kPairs: windows of 2 x 2, side by side, whose
// rows are aligned pairs.
template <bool kPairs, typename S, typename Map, typename Index>
__device__ __forceinline__ S window_maximum(const PoolGradientArgs<S>& args, const Map& map, const S* image, Index row,
                                            Index col, int* winner) {
  using Acc = typename StorageTraits<S>::Acc;
  const Index top = row * (kPairs ? 2 : args.stride_h), left = col * (kPairs ? 2 : args.stride_w);
  const S* const first = image + (top * static_cast<Index>(args.width) + left);
  PoolPair<S> above{}, below{};
  if constexpr (kPairs) {
    above = *reinterpret_cast<const PoolPair<S>*>(first);
    below = *reinterpret_cast<const PoolPair<S>*>(first + args.width);
  }
  S winning = kPairs ? above.values[0] : first[0];
  *winner = 0;
  Acc best = map.apply(norm::to_acc(winning));
  const auto take = [&](S value, int number) {
    const Acc mapped = map.apply(norm::to_acc(value));
    if (!(mapped > best || mapped != mapped)) return;
    best = mapped, winning = value, *winner = number;
  };
  if constexpr (kPairs) {
    take(above.values[1], 1), take(below.values[0], 2), take(below.values[1], 3);
  } else {
    for (int i = 0; i < args.kernel_h && top + i < args.height; ++i)
      for (int j = 0; j < args.kernel_w && left + j < args.width; ++j)
        if (i + j > 0) take(first[i * args.width + j], i * args.kernel_w + j);
  }
  return winning;
}

template <bool kPairs, typename S>
__global__ void __launch_bounds__(PoolGradientConfig::kThreads)
    pool_maxima_kernel(const __grid_constant__ PoolGradientArgs<S> args) {
  const int64_t count = args.planes * args.windows.rows * args.windows.cols;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t index = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; index < count; index += step) {
    const PoolPlace place = args.windows.place(index);
    int winner;
    const S* const image = args.value + place.plane * args.height * args.width;
    args.maxima[index] = window_maximum<kPairs>(args, args.maps[place.channel], image, place.row, place.col, &winner);
    args.winners[index] = static_cast<uint8_t>(winner);
  }
}

}  // namespace cuda
}  // namespace tconv
