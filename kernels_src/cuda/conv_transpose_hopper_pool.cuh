// Max-pooling in the Hopper convolution's epilogue: 2 x 2 windows side by side, before BatchNorm. BatchNorm is affine
// per channel and the activation after it never decreases, so that a window's largest result comes from its largest
// value where the BatchNorm weight is positive, and from its smallest where that is negative. Where it is zero every
// finite value gives the same, and an infinite one NaN: there the largest magnitude stands for the window.
#pragma once

#include "conv_transpose_hopper_args.cuh"
#include "pool_window.cuh"

namespace tconv {
namespace cuda {
namespace hopper {

// The BatchNorm weight of a channel of all.
template <typename Storage>
__device__ __forceinline__ float pool_weight(const HopperArgs<Storage>& args, int channel) {
  return args.pool_weight != nullptr ? static_cast<float>(args.pool_weight[channel]) : 1.0f;
}

// Stores the windows of a warp's 16 channels x segment; `weights` are pool_weight of this thread's two channels. Pairs
// of columns are pooled in registers, pairs of rows through the warp's buffer: 8 channels at a time, a float per column
// pair.
template <int N, typename Storage>
__device__ __forceinline__ void store_pooled_segment(const HopperArgs<Storage>& args, const Shared& shared,
                                                     const TileCursor& at, int first_position, int channel0, int thread,
                                                     const float (&weights)[2], const float (&acc)[N / 2]) {
  const Plan& plan = args.plan;
  const int lane = thread % 32, warp = thread / 32 % 4;
  constexpr int kPitch = pool_store_pitch(N);
  const int pooled_w = args.out_w / 2, row_pairs = plan.pitch / 2;  // pixels of a row, column pairs of a row
  // Windows of the segment, one after another: they lie so in memory too.
  const int first_row = static_cast<int>(args.by_pitch.quotient(first_position)) / 2;
  const int windows = min(plan.segment_pixels / (2 * plan.pitch), args.out_h / 2 - first_row) * pooled_w;
  const int64_t plane = static_cast<int64_t>(args.out_h / 2) * pooled_w;
  const uint32_t buffer = shared.stores + thread / 32 * plan.store_bytes_per_warp;
  const uint32_t write_at = buffer + ((lane / 4) * kPitch + lane % 4) * 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int first_channel = channel0 + warp * 16 + half * 8;  // of the group
    const int channels_left = plan.out_channels_per_group - first_channel;
    const int64_t channel = static_cast<int64_t>(at.group) * plan.out_channels_per_group + first_channel;
    const float weight = weights[half];
    // As bits: the sign is turned round where the weight is negative, taken away where it is zero.
    const uint32_t keep = weight == 0.0f ? 0x7FFFFFFFu : 0xFFFFFFFFu, turn = weight < 0.0f ? 0x80000000u : 0u;
    const auto turned = [keep, turn](float v) { return __uint_as_float((__float_as_uint(v) & keep) ^ turn); };
    __syncwarp();
#pragma unroll
    for (int j = 0; j < N / 8; ++j)
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(write_at + j * 16),
                   "f"(norm::max_or_nan(turned(acc[4 * j + 2 * half]), turned(acc[4 * j + 2 * half + 1])))
                   : "memory");
    __syncwarp();
    Storage* out =
        args.out +
        (static_cast<int64_t>(at.sample) * (plan.num_groups * plan.out_channels_per_group) + channel) * plane +
        static_cast<int64_t>(first_row) * pooled_w;
    const uint32_t negative = __ballot_sync(0xFFFFFFFFu, turn != 0);  // bit 4c: channel c
    for (int window = lane; window < windows; window += 32) {
      const int row = static_cast<int>(args.by_pooled_w.quotient(window));
      const uint32_t read_at = buffer + (row * 2 * row_pairs + window - row * pooled_w) * 4;
      float upper[8], lower[8];
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(upper[c]) : "r"(read_at + c * kPitch * 4));
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(lower[c]) : "r"(read_at + (c * kPitch + row_pairs) * 4));
      }
#pragma unroll
      for (int c = 0; c < 8; ++c) {
        const float largest = norm::max_or_nan(upper[c], lower[c]);
        if (c < channels_left)
          out[c * plane + window] = static_cast<Storage>(negative >> (4 * c) & 1 ? -largest : largest);
      }
    }
  }
}

}  // namespace hopper
}  // namespace cuda
}  // namespace tconv
