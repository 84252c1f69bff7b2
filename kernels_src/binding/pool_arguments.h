// MaxPool2d's parameters.
#pragma once

#include "stack.h"

namespace tconv {
namespace binding {

// Parameters of nn.MaxPool2d.
struct Pool {
  Pair kernel, stride, padding, dilation;
  bool ceil_mode;
};

#define TCONV_POOL_SCHEMA                                                                            \
  "int pool_kernel_h, int pool_kernel_w, int pool_stride_h, int pool_stride_w, int pool_padding_h, " \
  "int pool_padding_w, int pool_dilation_h, int pool_dilation_w, bool ceil_mode"

inline Pool take_pool(Stack& stack) {
  return {stack.pair(), stack.pair(), stack.pair(), stack.pair(), stack.boolean()};
}

inline void check_pool(const Pool& pool) {
  if (pool.kernel.smallest() <= 0) refuse("the pool's kernel_size must be positive, got ", pool.kernel);
  if (pool.stride.smallest() <= 0) refuse("the pool's stride must be positive, got ", pool.stride);
  if (pool.dilation.smallest() <= 0) refuse("the pool's dilation must be positive, got ", pool.dilation);
  for (int axis = 0; axis < 2; ++axis)
    if (pool.padding[axis] < 0 || pool.padding[axis] > (pool.dilation[axis] * (pool.kernel[axis] - 1) + 1) / 2)
      refuse("the pool's padding must be between 0 and half of the dilated kernel, got padding ", pool.padding,
             ", kernel_size ", pool.kernel, ", dilation ", pool.dilation);
}

// One axis after nn.MaxPool2d: in ceil_mode a last window that starts beyond the image is dropped.
inline int64_t pooled_size(int64_t size, int axis, const Pool& pool) {
  const int64_t stride = pool.stride[axis];
  const int64_t reach = size + 2 * pool.padding[axis] - pool.dilation[axis] * (pool.kernel[axis] - 1) - 1;
  if (reach < 0) return 0;
  if (!pool.ceil_mode) return reach / stride + 1;
  const int64_t pooled = (reach + stride - 1) / stride + 1;
  return (pooled - 1) * stride >= size + pool.padding[axis] ? pooled - 1 : pooled;
}

inline Pair pooled_image(int64_t height, int64_t width, const Pool& pool) {
  check_pool(pool);
  const Pair pooled = {pooled_size(height, 0, pool), pooled_size(width, 1, pool)};
  if (pooled.smallest() <= 0)
    refuse("the pooled output must have a positive size, got ", pooled.h, " x ", pooled.w, " for an image of ", height,
           " x ", width, " and a kernel of ", pool.kernel);
  return pooled;
}

inline void set_pool(BatchNormPoolArgs& args, const Pool& pool, const Pair& pooled) {
  args.pool_kernel_h = pool.kernel.h, args.pool_kernel_w = pool.kernel.w;
  args.pool_stride_h = pool.stride.h, args.pool_stride_w = pool.stride.w;
  args.pool_padding_h = pool.padding.h, args.pool_padding_w = pool.padding.w;
  args.pool_dilation_h = pool.dilation.h, args.pool_dilation_w = pool.dilation.w;
  args.pooled_h = pooled.h, args.pooled_w = pooled.w;
}

}  // namespace binding
}  // namespace tconv
