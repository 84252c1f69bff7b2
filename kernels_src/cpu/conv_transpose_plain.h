// Plain transposed convolution: one output row at a time, one tap at a time. Serves fp64, and fp32 when forced.
#pragma once

#include "conv_outputs.h"
#include "rows.h"

namespace tconv {
namespace cpu {

// The q for which i = q + shift lies in [0, in), clipped to [0, out_count).
struct TapRange {
  int64_t first, last;  // last is exclusive

  TapRange(const AxisPhase& phase, int64_t shift, int64_t in) {
    first = shift < 0 ? -shift : 0;
    last = in - shift < phase.out_count ? in - shift : phase.out_count;
  }
};

inline int64_t tap_shift(const AxisPhase& phase, int tap) {
  return int64_t(phase.offset_first) - int64_t(tap) * phase.offset_step;
}

// Sums of output row `oh` of channel `co`, without bias, into row[0 .. out_w).
template <typename T>
inline void plain_row(const ConvTransposeLayer& p, const T* x_sample, const T* weight, int64_t co, int64_t oh,
                      T* __restrict row) {
  for (int64_t i = 0; i < p.out_w; ++i) row[i] = 0;
  const int64_t group_in = p.in_channels / p.groups, group_out = p.out_channels / p.groups;
  const int64_t group = co / group_out;
  const AxisPhase h = phase_h(p, oh % p.stride_h);
  for (int64_t residue = 0; residue < p.stride_w && residue < p.out_w; ++residue) {
    const AxisPhase w = phase_w(p, residue);
    for (int64_t ci = group * group_in; ci < (group + 1) * group_in; ++ci) {
      const T* w_plane = weight + (ci * group_out + co % group_out) * p.kernel_h * p.kernel_w;
      for (int th = 0; th < h.tap_count; ++th) {
        const int64_t ih = oh / p.stride_h + tap_shift(h, th);
        if (ih < 0 || ih >= p.in_h) continue;
        const T* x_row = x_sample + ci * p.x_stride_c + ih * p.x_stride_h;
        const T* w_row = w_plane + (h.tap_first + th * h.tap_step) * p.kernel_w;
        for (int tw = 0; tw < w.tap_count; ++tw) {
          const T value = w_row[w.tap_first + tw * w.tap_step];
          const int64_t shift = tap_shift(w, tw);
          const TapRange range(w, shift, p.in_w);
          for (int64_t q = range.first; q < range.last; ++q)
            row[residue + q * p.stride_w] += value * x_row[(q + shift) * p.x_stride_w];
        }
      }
    }
  }
}

// Rows are the units of the moments.
inline int64_t plain_num_partials(const ConvTransposeLayer& p) { return p.out_h; }

template <typename T>
inline void run_conv_transpose_plain(const ConvCall& call, const ConvOutputs<T>& outputs) {
  const ConvTransposeLayer& p = call.layer;
  const EpilogueArgs<T> epilogue_args = make_epilogue_args<T>(call);
#pragma omp parallel for collapse(3) schedule(dynamic) num_threads(int(call.num_threads))
  for (int64_t n = 0; n < outputs.num_samples; ++n) {
    for (int64_t co = 0; co < p.out_channels; ++co) {
      for (int64_t oh = 0; oh < p.out_h; ++oh) {
        const T* x_sample = static_cast<const T*>(call.x) + (outputs.first_sample + n) * p.x_stride_n;
        T* row = outputs.out + ((n * p.out_channels + co) * p.out_h + oh) * p.out_w;
        plain_row(p, x_sample, static_cast<const T*>(call.weight), co, oh, row);
        const ChannelEpilogue<T> epilogue(epilogue_args, co);
        for (int64_t i = 0; i < p.out_w; ++i) row[i] = epilogue.apply(row[i]);
#ifdef TCONV_READS_TENSORS
        for (int64_t i = 0; i < p.out_w; ++i) row[i] = epilogue.join(row[i], row - outputs.out + i);
#endif
        if (outputs.partials != nullptr) {
          MomentsF64 moments;
          add_moments(Isa::kBaseline, row, p.out_w, moments);
          outputs.partials[(n * p.out_h + oh) * p.out_channels + co] = moments;
        }
      }
    }
  }
}

}  // namespace cpu
}  // namespace tconv
