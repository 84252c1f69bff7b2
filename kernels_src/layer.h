// The transposed convolution as every kernel sees it: shapes, and the tap table.
//
//   out[n, co, oh, ow] = bias[co] + sum over ci in co's group, kh, kw of x[n, ci, ih, iw] * w[ci, co', kh, kw]
//   for exactly those taps where  oh + ph - kh*dh = ih*sh  and  ow + pw - kw*dw = iw*sw,  0 <= ih < H, 0 <= iw < W
//   out height = (H - 1)*sh - 2*ph + dh*(kernel_h - 1) + output_padding_h + 1
//   (source: PyTorch ConvTranspose2d documentation). Output padding is only in out_h / out_w.
#pragma once

#include "common.h"

namespace tconv {

struct ConvTransposeLayer {
  int64_t batch, in_channels, out_channels, groups;
  int64_t in_h, in_w, out_h, out_w;
  int64_t kernel_h, kernel_w;
  int64_t stride_h, stride_w;
  int64_t padding_h, padding_w;
  int64_t dilation_h, dilation_w;
  // Strides of x in elements; weight [in_channels, out_channels/groups, kernel_h, kernel_w] and
  // out [batch, out_channels, out_h, out_w] are contiguous.
  int64_t x_stride_n, x_stride_c, x_stride_h, x_stride_w;
};

// One axis of one phase. Outputs with the same residue modulo the stride use the same taps with the
// same input offsets, so a phase is a stride-1 sliding product:
//   output  o(q) = out_first + q * out_step          for q in [0, out_count)
//   tap     k(j) = tap_first + j * tap_step          for j in [0, tap_count)
//   input   i(q, j) = q + offset_first - j * offset_step     (absent where outside [0, in))
struct AxisPhase {
  int out_first, out_step;
  int64_t out_count;
  int tap_first, tap_step, tap_count;
  int offset_first, offset_step;
};

TCONV_HD int64_t gcd(int64_t a, int64_t b) {
  while (b != 0) {
    int64_t r = a % b;
    a = b;
    b = r;
  }
  return a;
}

// The phase of outputs congruent to `residue` (0 <= residue < stride) along one axis.
// A tap k is present iff (residue + padding - k*dilation) is a multiple of the stride; the first such
// k, if any, is below stride/gcd(stride, dilation), and they repeat with that period.
TCONV_HD AxisPhase make_axis_phase(int64_t out, int64_t kernel, int64_t stride, int64_t padding, int64_t dilation,
                                   int64_t residue) {
  AxisPhase p{};
  const int64_t g = gcd(stride, dilation);
  p.out_first = static_cast<int>(residue);
  p.out_step = static_cast<int>(stride);
  p.out_count = residue < out ? (out - residue + stride - 1) / stride : 0;
  p.tap_step = static_cast<int>(stride / g);
  p.offset_step = static_cast<int>(dilation / g);
  for (int64_t k = 0; k < kernel && k < stride / g; ++k) {
    const int64_t numerator = residue + padding - k * dilation;
    if (numerator % stride != 0) continue;
    p.tap_first = static_cast<int>(k);
    p.tap_count = static_cast<int>((kernel - k + p.tap_step - 1) / p.tap_step);
    p.offset_first = static_cast<int>(numerator / stride);  // exact
    break;
  }
  return p;
}

TCONV_HD AxisPhase phase_h(const ConvTransposeLayer& p, int64_t residue) {
  return make_axis_phase(p.out_h, p.kernel_h, p.stride_h, p.padding_h, p.dilation_h, residue);
}

TCONV_HD AxisPhase phase_w(const ConvTransposeLayer& p, int64_t residue) {
  return make_axis_phase(p.out_w, p.kernel_w, p.stride_w, p.padding_w, p.dilation_w, residue);
}

}  // namespace tconv
