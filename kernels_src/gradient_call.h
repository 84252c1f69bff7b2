// Argument block of the gradients' library, filled by its operator (binding/operator_gradients.cpp).
#pragma once

#include "call.h"
#ifdef TCONV_GRADIENT_CHAINS
#include "group_norm_gradient_call.h"

namespace tconv {
namespace cuda {
struct PlanesPacker;
}
}  // namespace tconv
#endif

namespace tconv {

// Gradients of a transposed convolution without what follows it; or, where conv.out is not null, its output, which the
// gradients of what follows are formed from.
struct GradientCall {
  ConvCall conv;     // of gradients: layer, dtype, math, kernel choice, x, weight, workspace, stream
  const void* grad;  // of the convolution's output, [batch, out_channels, out_h, out_w] with these strides in elements
  int64_t grad_stride_n, grad_stride_c, grad_stride_h, grad_stride_w;
  int64_t grad_columns;  // of a row in memory: out_w, or more, of which those behind out_w are zeros
  // Contiguous, of the call's dtype; null where not wanted.
  void* grad_x;       // [batch, in_channels, in_h, in_w]
  void* grad_weight;  // [in_channels, out_channels/groups, kernel_h, kernel_w]
  void* grad_bias;    // [out_channels]
#ifdef TCONV_WALKS_DEPTH
  DepthAxis depth;
#endif
#ifdef TCONV_GRADIENT_CHAINS
  // Where of_chain.grad is not null, grad is formed from it and of_chain.value, and written only if it has to be: it
  // may lie where value does. Where of_chain.grad_value is another tensor, grad is written there and nothing else is
  // done.
  GroupNormGradientCall of_chain;
  bool computes_value;  // the convolution's output, with conv.bias, in place of a value: neither it nor grad is given
  const cuda::PlanesPacker* packer;  // the library's own
#endif
};

}  // namespace tconv
