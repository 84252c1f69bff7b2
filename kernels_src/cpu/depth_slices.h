// Where a call of three dimensions (depth_walk.h) has its channels, its weights and its outputs. Plain sums of a row,
// for weights that are not finite.
#pragma once

#include "conv_transpose_plain.h"

namespace tconv {
namespace cpu {

// Kernels read a walk in fp32 by tiles, where some tap reads something, and of one residue at a time.
inline bool walk_is_served(const ConvCall& call) {
  return call.dtype == kFloat32 && call.kernel_choice != kPlain && call.depth.taps > 0 && call.depth.residues() == 1;
}

// One channel of a group, as images have them: which of x's, through which tap.
struct WalkChannel {
  int64_t channel, tap;

  WalkChannel(const ConvCall& call, int64_t group, int64_t place) {
    const int64_t of_tap = call.layer.in_channels / call.layer.groups / call.depth.taps;
    tap = place / of_tap;
    channel = group * of_tap + place % of_tap;
  }
};

// The channels of a group that an image reads something of: neighbours, since a tap's slice moves by a constant.
struct ChannelsRead {
  int64_t first, last;

  ChannelsRead(const ConvCall& call, int64_t image, int64_t group_in) : first(0), last(group_in) {
    const DepthWalk& walk = call.depth;
    if (!walk.walks()) return;
    const int64_t slice = walk.first + image % walk.slices;
    const auto absent = [&](int64_t tap) {
      const int64_t at = slice + tap * walk.step;
      return at < 0 || at >= walk.in_depth;
    };
    int64_t begin = 0, end = walk.taps;
    while (begin < end && absent(begin)) ++begin;
    while (begin < end && absent(end - 1)) --end;
    const int64_t of_tap = group_in / walk.taps;
    first = begin * of_tap;
    last = end * of_tap;
  }
};

// The plane of x that it is in an image; null: zeros.
inline const float* input_plane(const ConvCall& call, int64_t image, const WalkChannel& at) {
  const DepthWalk& walk = call.depth;
  const int64_t sample = image / walk.slices;
  const int64_t slice = walk.first + image % walk.slices + at.tap * walk.step;
  if (slice < 0 || slice >= walk.in_depth) return nullptr;
  return static_cast<const float*>(call.x) + sample * walk.x_stride_n + slice * walk.x_stride_d +
         at.channel * call.layer.x_stride_c;
}

// Its weights for out channel 0 of the group, [kernel_h, kernel_w]; weight_step leads to the next out channel's.
inline const float* weight_plane(const ConvCall& call, const WalkChannel& at) {
  const ConvTransposeLayer& p = call.layer;
  const DepthWalk& walk = call.depth;
  const int64_t kernel = p.kernel_h * p.kernel_w, slice = walk.kernel_first - at.tap * walk.kernel_step;
  return static_cast<const float*>(call.weight) +
         (at.channel * (p.out_channels / p.groups) * walk.kernel_depth + slice) * kernel;
}
inline int64_t weight_step(const ConvCall& call) {
  return call.depth.kernel_depth * call.layer.kernel_h * call.layer.kernel_w;
}
inline int64_t weight_count(const ConvCall& call) {
  const ConvTransposeLayer& p = call.layer;
  return p.in_channels / call.depth.taps * (p.out_channels / p.groups) * weight_step(call);
}

inline float* output_plane(const ConvCall& call, float* out, int64_t image, int64_t channel) {
  const DepthWalk& walk = call.depth;
  return out + image / walk.slices * walk.out_stride_n + channel * walk.out_stride_c +
         image % walk.slices * walk.out_stride_d;
}

// plain_row of an image.
inline void plain_row_of_walk(const ConvCall& call, int64_t image, int64_t co, int64_t oh, float* __restrict row) {
  const ConvTransposeLayer& p = call.layer;
  for (int64_t i = 0; i < p.out_w; ++i) row[i] = 0;
  const int64_t group_in = p.in_channels / p.groups, group_out = p.out_channels / p.groups;
  const AxisPhase h = phase_h(p, oh % p.stride_h);
  for (int64_t place = 0; place < group_in; ++place) {
    const WalkChannel at(call, co / group_out, place);
    const float* plane = input_plane(call, image, at);
    if (plane == nullptr) continue;
    const float* weights = weight_plane(call, at) + co % group_out * weight_step(call);
    for (int th = 0; th < h.tap_count; ++th) {
      const int64_t ih = oh / p.stride_h + tap_shift(h, th);
      if (ih < 0 || ih >= p.in_h) continue;
      const float* x_row = plane + ih * p.x_stride_h;
      const float* w_row = weights + (h.tap_first + th * h.tap_step) * p.kernel_w;
      for (int64_t residue = 0; residue < p.stride_w && residue < p.out_w; ++residue) {
        const AxisPhase w = phase_w(p, residue);
        for (int tw = 0; tw < w.tap_count; ++tw) {
          const float value = w_row[w.tap_first + tw * w.tap_step];
          const int64_t shift = tap_shift(w, tw);
          const TapRange range(w, shift, p.in_w);
          for (int64_t q = range.first; q < range.last; ++q)
            row[residue + q * p.stride_w] += value * x_row[(q + shift) * p.x_stride_w];
        }
      }
    }
  }
}

}  // namespace cpu
}  // namespace tconv
