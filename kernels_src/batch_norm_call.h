// Argument block of the library of BatchNorm alone, filled by its operator (binding/operator_batch_norm.cpp).
#pragma once

#include "call.h"

namespace tconv {

// result = (value - mean) / sqrt(var + eps) * weight + bias by the batch's statistics, and softmax over rows of it
// where it is asked for; value and result are contiguous [batch, channels, plane] in fp32.
struct BatchNormCall {
  ConvCall conv;           // workspace, stream
  BatchNormPoolArgs norm;  // without its pool
  const void* value;
  void* result;
  int64_t batch, channels, plane;
  int64_t softmax_width;  // columns of a row, or 0 without softmax
};

}  // namespace tconv
