// Argument block of the library of the gradients through BatchNorm, activation, max-pool and GroupNorm, filled by its
// operator (binding/operator_batch_norm_pool_gradient.cpp).
#pragma once

#include "call.h"

namespace tconv {

// All contiguous, of the call's dtype unless BatchNormPoolArgs says otherwise. Windows neither overlap nor leave the
// image to the left or above: strides are at least the kernel's size, paddings 0, dilations 1. null: not wanted.
struct BatchNormPoolGradientCall {
  ConvCall conv;                      // dtype, workspace, stream
  int64_t chain;                      // which activation (generated_gradient.h)
  BatchNormPoolArgs batch_norm_pool;  // running_mean and running_var: where given, the batch's or the running ones
  GroupNormArgs group_norm;
  const void* grad;   // [batch, channels, pooled_h, pooled_w], of the normalised
  const void* value;  // [batch, channels, height, width], what BatchNorm read
  int64_t batch, channels, height, width;
  int64_t row_columns;      // of grad_value in memory: width, or more, and zeros behind it
  void* grad_value;         // [batch, channels, height, width]
  void* grad_weight;        // [channels], BatchNorm's
  void* grad_bias;          // [channels]
  void* grad_group_weight;  // [channels], GroupNorm's
  void* grad_group_bias;    // [channels]
  void* grad_sums;          // [channels], of grad_value over samples and image
};

}  // namespace tconv
