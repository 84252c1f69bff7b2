// Three dimensions as a call of two: every output slice of one residue modulo the stride in depth is an image, and what
// its depth taps read, each from an input slice of its own, are its channels, tap after tap within a group:
//   channel t * (channels of a group of x) + c of image n * slices + j  is  x[n, c, first + j + t * step, :, :]
//   and its weight                                                    w[c, co, kernel_first - t * kernel_step, :, :]
// Gradients: grad's slices are where out's are, and the weight's gradient is that of three dimensions, of which a call
// writes its taps.
// Slices outside x are zeros. Strides are in elements. A call may be of several residues, each of as many slices and
// taps: the first, and those behind it. All of it, and every block between #ifdef TCONV_WALKS_DEPTH and
// #endif, is only in solutions with a transposed convolution of three dimensions (generator/sources.py).
#pragma once

#include <cstdint>

namespace tconv {

constexpr int kMostResidues = 4;       // of a call
constexpr int64_t kDepthChannels = 8;  // of a group and tap: the Hopper kernel's producers load so many together

struct DepthWalk {
  int64_t slices;       // images of a volume; 0: a call of two dimensions
  int64_t taps;         // in depth, of this residue; 0: every output is bias alone
  int64_t in_depth;     // slices of x
  int64_t first, step;  // above
  int64_t kernel_depth, kernel_first, kernel_step;
  int64_t x_stride_n, x_stride_d;
  int64_t out_stride_n, out_stride_c, out_stride_d;  // from the residue's first slice on; of gradients, grad's
  int64_t more_residues;                             // beside the first: 0, 1 or 3
  int64_t more_first[kMostResidues - 1], more_kernel_first[kMostResidues - 1];  // theirs, in place of the first one's

  bool walks() const { return slices > 0; }
  int64_t tap_count() const { return taps > 1 ? taps : 1; }  // in a group's channels
  int residues() const { return static_cast<int>(more_residues) + 1; }
  int64_t first_of(int residue) const { return residue == 0 ? first : more_first[residue - 1]; }
  int64_t kernel_first_of(int residue) const { return residue == 0 ? kernel_first : more_kernel_first[residue - 1]; }
  // What plans depend on beside the call's layer.
  int64_t key() const { return walks() ? (taps + 1) * kMostResidues + more_residues : 0; }
};

// The layer's third axis, of a call for the gradient of x, which takes whole volumes.
struct DepthAxis {
  int64_t in, out;  // slices of x and of grad; in: 0 in a call of two dimensions
  int64_t kernel, stride, padding, dilation;
  int64_t grad_stride;  // from slice to slice of grad, in elements
};

}  // namespace tconv
