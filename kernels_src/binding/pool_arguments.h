// Checks of BatchNorm2d and MaxPool2d.
#pragma once

#include "arguments.h"

namespace tconv {
namespace binding {

// Parameters of nn.MaxPool2d.
struct Pool {
  Pair kernel, stride, padding, dilation;
  bool ceil_mode;
};

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

inline void check_running(const char* name, const OptionalTensor& value, int64_t channels, const Tensor& x) {
  if (!value) refuse(name, " is needed where batch statistics are not used, got None");
  if (value->dim() != 1 || value->size(0) != channels || !(device_of(*value) == device_of(x)))
    refuse(name, " must have shape (", channels, ",) on ", device_of(x).name(), ", got ", shape_text(*value), " on ",
           device_of(*value).name());
}

// BatchNorm2d over a convolution's output of `shape`; ValueError as PyTorch for a wrong number of dimensions or values.
inline void check_batch_norm(const int64_t* shape, size_t dim, bool use_batch_stats, const OptionalTensor& weight,
                             const OptionalTensor& bias, const OptionalTensor& mean, const OptionalTensor& var,
                             const Tensor& x) {
  if (dim != 4)
    refuse_value("batch_norm: input must have 4 dimensions (batch, channels, height, width), got a convolution output of shape ",
                 tuple_text(shape, dim));
  check_channel_vector("the BatchNorm weight", weight, shape[1], x);
  check_channel_vector("the BatchNorm bias", bias, shape[1], x);
  if (!use_batch_stats) {
    check_running("running_mean", mean, shape[1], x);
    check_running("running_var", var, shape[1], x);
  } else if (shape[0] * shape[2] * shape[3] == 1) {
    refuse_value("batch_norm: expected more than 1 value per channel when training, got shape ", tuple_text(shape, dim));
  }
}

}  // namespace binding
}  // namespace tconv
