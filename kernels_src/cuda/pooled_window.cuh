// A pool's window [depth][height][width] in a volume: its average, or its largest value and where that is.
#pragma once

#include "../tail_call.h"
#include "group_norm_storage.cuh"

namespace tconv {
namespace cuda {

// Of fixed extents, whose values are loaded at once; 0, 0, 0: of any.
template <int kDepth, int kHeight, int kWidth>
class Window {
 public:
  TCONV_HD Window(int depth, int height, int width) : depth_(depth), height_(height), width_(width) {}

  __device__ __forceinline__ int depth() const { return kDepth ? kDepth : depth_; }
  __device__ __forceinline__ int height() const { return kHeight ? kHeight : height_; }
  __device__ __forceinline__ int width() const { return kWidth ? kWidth : width_; }
  __device__ __forceinline__ int64_t count() const { return int64_t{depth()} * height() * width(); }

  // f(slice, row, column, place among all).
  template <typename F>
  __device__ __forceinline__ void each(const F& f) const {
    if constexpr (kDepth > 0) {
#pragma unroll
      for (int at = 0; at < kDepth * kHeight * kWidth; ++at)
        f(at / (kHeight * kWidth), at / kWidth % kHeight, at % kWidth, at);
    } else {
      int at = 0;
      for (int i = 0; i < depth_; ++i)
        for (int j = 0; j < height_; ++j)
          for (int k = 0; k < width_; ++k) f(i, j, k, at++);
    }
  }

  // from: where the largest is, the first of several or the last NaN, as PyTorch has it; 0 of an average.
  template <bool kLargest, typename S>
  __device__ __forceinline__ float pooled(const S* values, int64_t image, int64_t columns, int& from) const {
    float result = kLargest ? -INFINITY : 0.0f;
    from = 0;
    const auto take = [&](float v, int at) {
      if constexpr (kLargest) {
        if (!(v > result || isnan(v))) return;
        result = v, from = at;
      } else {
        result += v;
      }
    };
    if constexpr (kDepth > 0) {
      S held[kDepth * kHeight * kWidth];
      each([&](int i, int j, int k, int at) { held[at] = values[i * image + j * columns + k]; });
      each([&](int, int, int, int at) { take(norm::to_acc(held[at]), at); });
    } else {
      each([&](int i, int j, int k, int at) { take(norm::to_acc(values[i * image + j * columns + k]), at); });
    }
    return kLargest ? result : result / static_cast<float>(count());
  }

 private:
  int depth_, height_, width_;
};

// take(the Window for the call's).
template <typename Take>
int64_t with_window(const TailCall& call, const Take& take) {
  if (call.window[1] == 2 && call.window[2] == 2) {
    if (call.window[0] == 2) return take(Window<2, 2, 2>(2, 2, 2));
    if (call.window[0] == 1) return take(Window<1, 2, 2>(1, 2, 2));
  }
  return take(Window<0, 0, 0>(0, 0, 0));
}

}  // namespace cuda
}  // namespace tconv
