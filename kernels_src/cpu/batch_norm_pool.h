// BatchNorm statistics, and max-pooling of raw convolution outputs.
//
// BatchNorm is affine per channel and the activation is non-decreasing, so both commute with the pool: the largest
// activated value of a window is the activated image of its largest (negative scale: smallest) raw value.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "../running_statistics.h"
#include "../call.h"
#include "affine.h"
#include "vector_code.h"

namespace tconv {
namespace cpu {

// Max-pooling of planes [h, w] into [pooled_h, pooled_w]; NaN wins, as in PyTorch.
template <typename T>
class MaxPool {
 public:
  MaxPool(const BatchNormPoolArgs& args, int64_t h, int64_t w)
      : args_(args),
        h_(h),
        w_(w),
        line_((args.pooled_w - 1) * args.pool_stride_w + (args.pool_kernel_w - 1) * args.pool_dilation_w + 1) {}

  // Maxima, or minima where `smallest`.
  void run(Isa isa, bool smallest, const T* plane, T* pooled) {
    for (int64_t ph = 0; ph < args_.pooled_h; ++ph, pooled += args_.pooled_w)
      smallest ? pool_row<true>(isa, plane, ph, pooled) : pool_row<false>(isa, plane, ph, pooled);
  }

 private:
  template <bool kSmallest>
  static TCONV_INLINE T better(T best, T v) {
    return (int(kSmallest ? v < best : v > best) | int(v != v)) != 0 ? v : best;
  }

  // The window's rows first, into line_ (padded columns included), then its columns.
  template <bool kSmallest>
  void pool_row(Isa isa, const T* plane, int64_t ph, T* pooled) {
    const T worst = kSmallest ? std::numeric_limits<T>::infinity() : -std::numeric_limits<T>::infinity();
    const int64_t length = static_cast<int64_t>(line_.size());
    const int64_t first = args_.pool_padding_w;
    const int64_t count = std::min(w_, length - first);
    std::fill(line_.begin(), line_.end(), worst);
    for (int64_t kh = 0; kh < args_.pool_kernel_h; ++kh) {
      const int64_t row = ph * args_.pool_stride_h - args_.pool_padding_h + kh * args_.pool_dilation_h;
      if (row >= 0 && row < h_) keep_better<kSmallest>(isa, line_.data() + first, plane + row * w_, 1, count);
    }
    std::fill(pooled, pooled + args_.pooled_w, worst);
    for (int64_t kw = 0; kw < args_.pool_kernel_w; ++kw)
      keep_better<kSmallest>(isa, pooled, line_.data() + kw * args_.pool_dilation_w, args_.pool_stride_w,
                             args_.pooled_w);
  }

  template <bool kSmallest>
  static void keep_better(Isa isa, T* best, const T* v, int64_t step, int64_t count) {
    vectorised<T>(isa, [=]() __attribute__((always_inline)) {
      if (step == 1) {
#pragma omp simd
        for (int64_t i = 0; i < count; ++i) best[i] = better<kSmallest>(best[i], v[i]);
      } else if (step == 2) {
#pragma omp simd
        for (int64_t i = 0; i < count; ++i) best[i] = better<kSmallest>(best[i], v[2 * i]);
      } else {
        for (int64_t i = 0; i < count; ++i) best[i] = better<kSmallest>(best[i], v[i * step]);
      }
    });
  }

  const BatchNormPoolArgs& args_;
  int64_t h_, w_;
  std::vector<T> line_;
};

// One channel's normalisation, from its batch statistics (which are then written and kept) or the running ones.
template <typename T>
inline Affine<T> batch_norm_affine(const BatchNormPoolArgs& args, const MomentsF64& moments, int64_t channel) {
  double mean, variance;
  if (args.use_batch_stats != 0) {
    mean = moments.mean;
    variance = moments.m2 / moments.count;
    if (args.batch_mean != nullptr) static_cast<T*>(args.batch_mean)[channel] = T(mean);
    if (args.batch_var != nullptr) static_cast<T*>(args.batch_var)[channel] = T(variance);
    update_running_statistics<T>(args.updated, channel, moments);
  } else {
    mean = double(static_cast<const T*>(args.running_mean)[channel]);
    variance = double(static_cast<const T*>(args.running_var)[channel]);
  }
  return make_affine(mean, variance, args.eps, static_cast<const T*>(args.weight), static_cast<const T*>(args.bias),
                     channel);
}

}  // namespace cpu
}  // namespace tconv
