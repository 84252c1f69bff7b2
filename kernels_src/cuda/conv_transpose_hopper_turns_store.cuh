// How 16-bit outputs of the Hopper convolution in turns leave: rounded before they go through shared memory, half as
// many bytes, 16 channels at once.
#pragma once

#include "conv_transpose_hopper_epilogue.cuh"

namespace tconv {
namespace cuda {
namespace hopper {

// A warp's buffer: 64 columns in pairs, one after the other; of a pair 16 channels, c and c + 8 side by side, in four
// chunks of 16 bytes. Chunks change places from pair to pair, so that neither writing nor reading conflicts.
constexpr int kPairBytes = 64;
constexpr int kWarpChannels = 2 * kStoreChannels;
static_assert(kStoreColumns / 2 * kPairBytes <= kStoreBytesPerWarp, "the plan counts the buffers");

__device__ __forceinline__ int chunk_place(int chunk, int pair) { return chunk ^ (pair & 2) ^ (pair >> 2 & 1); }

template <typename Storage>
__device__ __forceinline__ uint32_t rounded_pair(float first, float second) {
  Storage values[2] = {static_cast<Storage>(first), static_cast<Storage>(second)};
  return *reinterpret_cast<uint32_t*>(values);
}

// Are pairs of outputs whole or absent, and all channels of the block there?
template <typename Storage>
__device__ __forceinline__ bool stores_pairs(const HopperArgs<Storage>& args) {
  const Plan& plan = args.plan;
  return args.pair_stores && plan.tile_w % 2 == 0 && plan.out_channels_per_group == kBlockOC &&
         args.partials == nullptr;
}

// Bias, element-wise chain and stores of a warp's 16 channels x N pixels, where stores_pairs.
template <int N, typename Storage>
__device__ __forceinline__ void finish_pairs(const HopperArgs<Storage>& args, const Shared& shared,
                                             const TileCursor& at, int segment, const ChannelPair& channels,
                                             float (&acc)[N / 2]) {
  static_assert(N % kStoreColumns == 0, "whole blocks of columns");
  constexpr int kFragments = kStoreColumns / 8;  // of 8 columns, in a block
  const Plan& plan = args.plan;
  const Phase& phase = plan.phases[0];
  int thread = threadIdx.x;
  asm volatile("" : "+r"(thread));
  const int lane = thread % 32, quarter = lane % 4, channel = lane / 4;
  const uint32_t buffer = shared.stores + thread / 32 * plan.store_bytes_per_warp;
  const int rows = phase.out_count_h, cols = min(plan.tile_w, phase.out_count_w - at.strip * plan.tile_w);
  const int64_t plane = static_cast<int64_t>(args.out_h) * args.out_w;
  const int64_t first_channel =
      (at.sample * static_cast<int64_t>(plan.num_groups) + at.group) * plan.out_channels_per_group +
      thread / 32 % 4 * kWarpChannels;
  Storage* const first_out = args.out + first_channel * plane + at.strip * plan.tile_w;
  const int first_position = at.tile * plan.tile_pixels + segment * plan.segment_pixels + 2 * lane;
#pragma unroll
  for (int block = 0; block < N / kStoreColumns; ++block) {
    finish_fragments<N>(args, channels, at.group, acc, block * kFragments, (block + 1) * kFragments);
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kFragments; ++j) {
      const float* const values = acc + 4 * (block * kFragments + j);
      const int pair = 4 * j + quarter;
      const uint32_t to = buffer + pair * kPairBytes + chunk_place(channel / 2, pair) * 16 + channel % 2 * 8;
      asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(to), "r"(rounded_pair<Storage>(values[0], values[1])),
                   "r"(rounded_pair<Storage>(values[2], values[3]))
                   : "memory");
    }
    const int position = first_position + block * kStoreColumns;
    const int row = static_cast<int>(args.by_pitch.quotient(position)), col = position - row * plan.pitch;
    Storage* const to = first_out + static_cast<int64_t>(row) * args.out_w + col;
    __syncwarp();
    uint32_t words[kWarpChannels];
#pragma unroll
    for (int chunk = 0; chunk < 4; ++chunk)
      asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(words[4 * chunk]), "=r"(words[4 * chunk + 1]), "=r"(words[4 * chunk + 2]),
                     "=r"(words[4 * chunk + 3])
                   : "r"(buffer + lane * kPairBytes + chunk_place(chunk, lane) * 16));
    if (row < rows && col < cols) {
#pragma unroll
      for (int word = 0; word < kWarpChannels; ++word)  // not read again soon: the cache is for the input
        __stcs(reinterpret_cast<uint32_t*>(to + (word / 2 + word % 2 * kStoreChannels) * plane), words[word]);
    }
  }
}

}  // namespace hopper
}  // namespace cuda
}  // namespace tconv
