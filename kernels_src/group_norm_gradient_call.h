// Argument block of the library of GroupNorm's gradients, filled by its operator
// (binding/operator_group_norm_gradient.cpp).
#pragma once

#include "call.h"

namespace tconv {

// value: what was normalised; grad: of the normalised. All contiguous, of the call's dtype.
struct GroupNormGradientCall {
  ConvCall conv;       // dtype, workspace, stream
  const void* grad;    // [batch, channels, plane]
  const void* value;   // [batch, channels, plane]
  const void* weight;  // [channels] or null
  int64_t batch, channels, plane, num_groups;
  double eps;
  void* grad_value;   // [batch, channels, plane]
  void* grad_weight;  // [channels] or null where not wanted
  void* grad_bias;    // [channels] or null where not wanted
};

}  // namespace tconv
