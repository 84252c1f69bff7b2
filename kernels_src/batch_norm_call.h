// Argument block of the library of BatchNorm alone, filled by its operators (binding/operator_batch_norm.cpp).
#pragma once

#include "call.h"

namespace tconv {

// result = (value - mean) / sqrt(var + eps) * weight + bias by the batch's statistics, and softmax over rows of it
// where it is asked for; or, where grad is not null, the gradients behind it. Tensors are contiguous
// [batch, channels, plane] in fp32.
struct BatchNormCall {
  ConvCall conv;           // workspace, stream
  BatchNormPoolArgs norm;  // without its pool
  const void* value;
  void* result;
  int64_t batch, channels, plane;
  int64_t softmax_width;  // columns of a row, or 0 without softmax
  const void* grad;       // of the result, without softmax
  void* grad_value;
  void* grad_weight;  // [channels] or null where not wanted
  void* grad_bias;    // likewise
};

}  // namespace tconv
