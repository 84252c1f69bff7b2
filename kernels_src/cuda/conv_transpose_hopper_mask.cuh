// Stores of the Hopper convolution that leave a mask beside the outputs (output_mask.cuh). The chain, which has no
// operands then, is computed here, where both places are known.
#pragma once

#include "conv_transpose_hopper_epilogue.cuh"
#include "output_mask.cuh"

namespace tconv {
namespace cuda {
namespace hopper {

// What the chain is given, of the accumulators in fragments j0 to j1 of 8 columns.
template <int N>
__device__ __forceinline__ void scale_fragments(const ChannelPair& channels, float (&acc)[N / 2], int j0, int j1) {
#pragma unroll
  for (int half = 0; half < 2; ++half)
#pragma unroll
    for (int j = j0; j < j1; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& value = acc[4 * j + 2 * half + e];
        value = value * channels.inv_scale[half] + channels.bias[half];
      }
}

template <typename Storage>
__device__ __forceinline__ float chain_of(const HopperArgs<Storage>& args, float value) {
  return Epilogue::apply<float, Storage>(value, args.epilogue, 0);
}

// Bytes of neighbours, the first in the lowest bits.
template <typename Storage>
__device__ __forceinline__ unsigned mask_of_pair(float2 pair) {
  return condition_holds<Storage>(pair.x) | condition_holds<Storage>(pair.y) << 8;
}

// Both are aligned to pairs.
template <typename Storage>
__device__ __forceinline__ void store_masked_pair(const HopperArgs<Storage>& args, Storage* to, float2 pair) {
  store_pair(to, make_float2(chain_of(args, pair.x), chain_of(args, pair.y)));
  *reinterpret_cast<uint16_t*>(args.mask + (to - args.out)) = static_cast<uint16_t>(mask_of_pair<Storage>(pair));
}

// As store_rows.
template <typename Storage>
__device__ __forceinline__ void store_masked_rows(const HopperArgs<Storage>& args, Storage* to, bool wanted,
                                                  uint32_t read_at, int rounds, int channels_at_once, int64_t plane) {
  float2 rows[kStoreChannels];
#pragma unroll
  for (int c = 0; c < rounds; ++c)
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(rows[c].x), "=f"(rows[c].y)
                 : "r"(read_at + c * channels_at_once * kStorePitch * 4));
#pragma unroll
  for (int c = 0; c < rounds; ++c)
    if (wanted) store_masked_pair(args, to + c * (channels_at_once * plane), rows[c]);
}

}  // namespace hopper
}  // namespace cuda
}  // namespace tconv
