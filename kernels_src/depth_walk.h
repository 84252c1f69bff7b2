// Three dimensions as a call of two: every output slice of one residue modulo the stride in depth is an image, and what
// its depth taps read, each from an input slice of its own, are its channels, tap after tap within a group:
//   channel t * (channels of a group of x) + c of image n * slices + j  is  x[n, c, first + j + t * step, :, :]
//   and its weight                                                    w[c, co, kernel_first - t * kernel_step, :, :]
// Gradients: grad's slices are where out's are, and the weight's gradient is that of three dimensions, of which a call
// writes its taps.
// Slices outside x are zeros. Strides are in elements. All of it, and every block between #ifdef TCONV_WALKS_DEPTH and
// #endif, is only in solutions with a transposed convolution of three dimensions (generator/sources.py).
#pragma once

#include <cstdint>

namespace tconv {

struct DepthWalk {
  int64_t slices;       // images of a volume; 0: a call of two dimensions
  int64_t taps;         // in depth, of this residue; 0: every output is bias alone
  int64_t in_depth;     // slices of x
  int64_t first, step;  // above
  int64_t kernel_depth, kernel_first, kernel_step;
  int64_t x_stride_n, x_stride_d;
  int64_t out_stride_n, out_stride_c, out_stride_d;  // from the residue's first slice on; of gradients, grad's

  bool walks() const { return slices > 0; }
  int64_t tap_count() const { return taps > 1 ? taps : 1; }  // in a group's channels
  int64_t key() const { return walks() ? taps + 1 : 0; }     // what plans depend on beside the call's layer
};

// The layer's third axis, of a call for the gradient of x, which takes whole volumes.
struct DepthAxis {
  int64_t in, out;  // slices of x and of grad; in: 0 in a call of two dimensions
  int64_t kernel, stride, padding, dilation;
  int64_t grad_stride;  // from slice to slice of grad, in elements
};

}  // namespace tconv
