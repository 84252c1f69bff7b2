// Max-pooling windows: their geometry, and the maximum that NaN passes through.
#pragma once

#include "../call.h"
#include "group_norm_storage.cuh"

namespace tconv {
namespace cuda {
namespace norm {

// in [.., in_h, in_w] -> out [.., out_h, out_w]; window taps outside the image do not exist.
struct PoolGeometry {
  int in_h, in_w, out_h, out_w;
  int kernel_h, kernel_w, stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w;

  TCONV_HD int64_t in_plane() const { return int64_t{in_h} * in_w; }
  TCONV_HD int64_t out_plane() const { return int64_t{out_h} * out_w; }

  // Whole 2 x 2 windows side by side.
  bool is_2x2() const {
    return kernel_h == 2 && kernel_w == 2 && stride_h == 2 && stride_w == 2 && padding_h == 0 && padding_w == 0 &&
           dilation_h == 1 && dilation_w == 1 && out_h <= in_h / 2 && out_w <= in_w / 2;
  }
};

inline PoolGeometry make_pool_geometry(int64_t in_h, int64_t in_w, const BatchNormPoolArgs& args) {
  const auto narrow = [](int64_t v) { return static_cast<int>(v); };
  return {narrow(in_h),
          narrow(in_w),
          narrow(args.pooled_h),
          narrow(args.pooled_w),
          narrow(args.pool_kernel_h),
          narrow(args.pool_kernel_w),
          narrow(args.pool_stride_h),
          narrow(args.pool_stride_w),
          narrow(args.pool_padding_h),
          narrow(args.pool_padding_w),
          narrow(args.pool_dilation_h),
          narrow(args.pool_dilation_w)};
}

// The larger of two; NaN if either is, as PyTorch's max-pool.
__device__ __forceinline__ double max_or_nan(double a, double b) { return b > a || b != b ? b : a; }
__device__ __forceinline__ float max_or_nan(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}

// Positions of one window along one axis: first, first + dilation, ... below end.
struct WindowSpan {
  int64_t first, end;
};

__device__ __forceinline__ WindowSpan window_span(int out, int stride, int padding, int dilation, int kernel, int in) {
  int64_t first = int64_t{out} * stride - padding;
  const int64_t past_last = first + int64_t{kernel - 1} * dilation + 1;
  if (first < 0) first += (-first + dilation - 1) / dilation * dilation;
  return {first, past_last < in ? past_last : in};
}

}  // namespace norm
}  // namespace cuda
}  // namespace tconv
