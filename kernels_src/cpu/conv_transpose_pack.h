// Copies that the packed convolution makes: weights once per call, input rows once per block of outputs.
#pragma once

#include <cstring>

#include "conv_transpose_plan.h"
#ifdef TCONV_WALKS_DEPTH
#include "depth_slices.h"
#endif

namespace tconv {
namespace cpu {

inline bool all_finite(const float* values, int64_t count) {
  float sum = 0;  // of zeros, or NaN
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += values[i] * 0.0f;
  return sum == 0.0f;
}

// packed[group][tile][in channel][tap][channel of the tile], taps in the order of tap_offsets.
#ifdef TCONV_WALKS_DEPTH
inline void pack_weights(const ConvCall& call, const PackedPlan& plan, const PhasePlan& phase, const float* weight,
                         int64_t num_threads, float* packed) {
  const ConvTransposeLayer& p = call.layer;
  const int64_t taps = phase.tap_count();
  const int64_t kernel = call.depth.walks() ? weight_step(call) : p.kernel_h * p.kernel_w;
#else
inline void pack_weights(const ConvTransposeLayer& p, const PackedPlan& plan, const PhasePlan& phase,
                         const float* weight, int64_t num_threads, float* packed) {
  const int64_t taps = phase.tap_count(), kernel = p.kernel_h * p.kernel_w;
#endif
#pragma omp parallel for num_threads(int(num_threads))
  for (int64_t ci = 0; ci < p.in_channels; ++ci) {
    const int64_t group = ci / plan.group_in;
    const float* source = weight + ci * plan.group_out * kernel;
#ifdef TCONV_WALKS_DEPTH
    if (call.depth.walks()) source = weight_plane(call, WalkChannel(call, group, ci % plan.group_in));
#endif
    for (const ChannelTile& tile : plan.tiles) {
      float* to = packed + phase.weights + (group * plan.group_out + tile.first) * plan.group_in * taps +
                  (ci % plan.group_in) * taps * tile.count;
      for (int th = 0; th < phase.h.tap_count; ++th)
        for (int tw = 0; tw < phase.w.tap_count; ++tw)
          for (int c = 0; c < tile.count; ++c)
            *to++ =
                source[(tile.first + c) * kernel + (phase.h.tap_first + int64_t(th) * phase.h.tap_step) * p.kernel_w +
                       phase.w.tap_first + int64_t(tw) * phase.w.tap_step];
    }
  }
}

// One channel's rows for the block of output rows that starts at `first_out_row`.
inline void pack_plane(const ConvTransposeLayer& p, const PhasePlan& phase, const float* channel, int64_t first_out_row,
                       float* plane) {
  const int64_t begin = std::clamp<int64_t>(-phase.first_column, 0, phase.pitch);
  const int64_t end = std::clamp<int64_t>(p.in_w - phase.first_column, begin, phase.pitch);
  for (int64_t slot = 0; slot < phase.slots; ++slot) {
    const int64_t tap = std::min<int64_t>(slot / phase.slots_per_tap, phase.h.tap_count - 1);
    const int64_t row =
        first_out_row + phase.first_row + tap * phase.h.offset_step + (slot - tap * phase.slots_per_tap);
    float* to = plane + slot * phase.pitch;
    if (row < 0 || row >= p.in_h || begin == end) {
      std::memset(to, 0, phase.pitch * sizeof(float));
      continue;
    }
    std::memset(to, 0, begin * sizeof(float));
    const float* from = channel + row * p.x_stride_h + (begin + phase.first_column) * p.x_stride_w;
    if (p.x_stride_w == 1) {
      std::memcpy(to + begin, from, (end - begin) * sizeof(float));
    } else {
      for (int64_t i = begin; i < end; ++i, from += p.x_stride_w) to[i] = *from;
    }
    std::memset(to + end, 0, (phase.pitch - end) * sizeof(float));
  }
  const int64_t used = phase.slots * phase.pitch;
  std::memset(plane + used, 0, (phase.plane - used) * sizeof(float));
}

}  // namespace cpu
}  // namespace tconv
