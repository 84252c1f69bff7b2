// The workspace of the Hopper convolution: for conv_transpose_hopper_launch.cuh, which includes this within namespace
// tconv::cuda::hopper.
#pragma once

// Weight tiles, inverse scales, guard.
struct HopperWorkspace {
  int64_t tiles_bytes, scales_bytes, total_bytes;

  explicit HopperWorkspace(const Plan& plan) {
    tiles_bytes = plan.num_weight_tiles * plan.blocks_per_sweep * kTapBytes;
    const int64_t channels = static_cast<int64_t>(plan.num_groups) * plan.num_sweeps * plan.blocks_per_sweep * kBlockOC;
    scales_bytes = (channels * 4 + 255) / 256 * 256;
    total_bytes = tiles_bytes + scales_bytes + 256;
#ifdef TCONV_GATHERS_PIXELS
    pixels_at = total_bytes;
    total_bytes += plan.pixel_bytes;
#endif
#ifdef TCONV_PAIRS_ROWS
    pairs_at = total_bytes;
    if (plan.pairs.out > 0)
      total_bytes += int64_t{plan.phases[0].taps_h} * plan.phases[0].taps_w * plan.in_channels_per_group *
                     plan.out_channels_per_group * static_cast<int64_t>(sizeof(float));  // at most
#endif
  }
#ifdef TCONV_GATHERS_PIXELS
  int64_t pixels_at;
  uint4* pixels(void* base) const { return reinterpret_cast<uint4*>(static_cast<char*>(base) + pixels_at); }
#endif
#ifdef TCONV_PAIRS_ROWS
  int64_t pairs_at;
  template <typename Storage>
  Storage* pair_weights(void* base) const {
    return reinterpret_cast<Storage*>(static_cast<char*>(base) + pairs_at);
  }
#endif
  uint4* tiles(void* base) const { return static_cast<uint4*>(base); }
  float* scales(void* base) const { return reinterpret_cast<float*>(static_cast<char*>(base) + tiles_bytes); }
  GuardState* guard(void* base) const {
    return reinterpret_cast<GuardState*>(static_cast<char*>(base) + tiles_bytes + scales_bytes);
  }
};
