// Argument block of the library of GroupNorm's gradients, filled by its operator
// (binding/operator_group_norm_gradient.cpp).
#pragma once

#include "call.h"

namespace tconv {

// GroupNorm of a chain of element-wise operations on `value`, or (num_groups 0) the chain alone. grad: of the result.
// All contiguous, of the call's dtype.
struct GroupNormGradientCall {
  ConvCall conv;       // dtype, workspace, stream
  int64_t chain;       // which one (generated_gradient.h); its operands are conv.channel_vectors
  const void* grad;    // [batch, channels, height, width]
  const void* value;   // [batch, channels, height, width]
  const void* weight;  // [channels] or null
#ifdef TCONV_READS_MASK
  bool reads_mask;  // value: bytes, which the chain's gradient then reads
#endif
  int64_t batch, channels, height, width, num_groups;
  int64_t row_columns;  // of grad_value in memory: width, or more, and zeros behind it
  double eps;
  void* grad_value;                        // [batch, channels, height, width]
  void* grad_weight;                       // [channels] or null where not wanted
  void* grad_bias;                         // [channels] or null where not wanted
  void* grad_sums;                         // [channels], of grad_value over samples and image, or null where not wanted
  void* grad_vectors[kMaxChannelVectors];  // [channels], of the chain's operands
#ifdef TCONV_CHAINS_READ_TENSORS
  // Operands may have value's shape; those of them that backward does not read may be null. Their gradients, or null
  // where not wanted:
  void* grad_tensors[kMaxChannelVectors];
#endif
};

}  // namespace tconv
