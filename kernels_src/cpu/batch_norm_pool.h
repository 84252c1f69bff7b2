// BatchNorm statistics, and max-pooling of raw convolution outputs.
//
// BatchNorm is affine per channel and the activation is non-decreasing, so both commute with the pool: the largest
// activated value of a window is the activated image of its largest (negative scale: smallest) raw value.
#pragma once

#include <limits>

#include "../call.h"
#include "affine.h"

namespace tconv {
namespace cpu {

// Pools one plane [h, w] into pooled [pooled_h, pooled_w]: maxima, or minima where `smallest`. NaN wins, as in PyTorch.
template <typename T>
inline void pool_plane(const BatchNormPoolArgs& args, bool smallest, const T* plane, int64_t h, int64_t w, T* pooled) {
  const T start = smallest ? std::numeric_limits<T>::infinity() : -std::numeric_limits<T>::infinity();
  for (int64_t ph = 0; ph < args.pooled_h; ++ph) {
    for (int64_t pw = 0; pw < args.pooled_w; ++pw) {
      T best = start;
      for (int64_t kh = 0; kh < args.pool_kernel_h; ++kh) {
        const int64_t ih = ph * args.pool_stride_h - args.pool_padding_h + kh * args.pool_dilation_h;
        if (ih < 0 || ih >= h) continue;
        for (int64_t kw = 0; kw < args.pool_kernel_w; ++kw) {
          const int64_t iw = pw * args.pool_stride_w - args.pool_padding_w + kw * args.pool_dilation_w;
          if (iw < 0 || iw >= w) continue;
          const T v = plane[ih * w + iw];
          if ((smallest ? v < best : v > best) || v != v) best = v;
        }
      }
      pooled[ph * args.pooled_w + pw] = best;
    }
  }
}

// One channel's normalisation, from its batch statistics (which are then written) or the running ones.
template <typename T>
inline Affine<T> batch_norm_affine(const BatchNormPoolArgs& args, const MomentsF64& moments, int64_t channel) {
  double mean, variance;
  if (args.use_batch_stats != 0) {
    mean = moments.mean;
    variance = moments.m2 / moments.count;
    reinterpret_cast<T*>(args.batch_mean)[channel] = T(mean);
    reinterpret_cast<T*>(args.batch_var)[channel] = T(variance);
  } else {
    mean = double(reinterpret_cast<const T*>(args.running_mean)[channel]);
    variance = double(reinterpret_cast<const T*>(args.running_var)[channel]);
  }
  return make_affine(mean, variance, args.eps, static_cast<const T*>(args.weight), static_cast<const T*>(args.bias),
                     channel);
}

}  // namespace cpu
}  // namespace tconv
