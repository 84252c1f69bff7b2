// Argument block of the library of GroupNorm alone, filled by its operators (binding/operator_group_norm.cpp).
#pragma once

#include "call.h"

namespace tconv {

// result = (value - mean) / sqrt(var + eps) * weight + bias with mean and biased variance over a group's channels and
// pixels; or, where grad is not null, the gradients behind it. Tensors are contiguous [batch, channels, plane].
struct GroupNormCall {
  ConvCall conv;  // dtype, workspace, stream
  GroupNormArgs norm;
  const void* value;
  int64_t batch, channels, plane;
  void* result;
  const void* grad;  // of the result
  void* grad_value;
  void* grad_weight;  // [channels] or null where not wanted
  void* grad_bias;    // likewise
};

}  // namespace tconv
