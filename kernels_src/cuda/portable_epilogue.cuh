// Accumulator fragments -> outputs: staged through shared memory so that a warp stores consecutive pixels of one
// channel, with the element-wise epilogue and the channel's moments on the way.
#pragma once

#include "../epilogue.h"
#include "../moments.h"
#include "conv_transpose_portable_config.h"
#include "mma_sync.cuh"
#include "storage.cuh"

namespace tconv {
namespace cuda {

__device__ __forceinline__ float warp_sum(float v) {  // same value, same order of additions, in every lane
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) v += __shfl_xor_sync(0xffffffffu, v, distance);
  return v;
}

// Where a tile's outputs go. offset[i] is this lane's position lane + 32 i within the channel's plane, or -1.
template <typename Config, typename Storage>
struct TileOutput {
  static constexpr int kPixelsPerLane = Config::BLOCK_PIX / 32;
  Storage* out;            // plane of the block's first channel
  int64_t plane;           // elements per channel
  Moments* partials;       // of the block's first channel, or null
  const float* inv_scale;  // of the block's first channel; containers only
  int channel;             // the block's first channel
  int num_channels;        // valid channels, <= BLOCK_OC
  int offset[kPixelsPerLane];
};

// All threads of the block; `staging` is dynamic shared memory that nobody else uses any more.
template <typename Config, typename Storage>
__device__ __forceinline__ void store_tile(const float (&acc)[Config::kSegmentsPerWarp][Config::kRowTiles][4],
                                           float* staging, const TileOutput<Config, Storage>& tile,
                                           const EpilogueArgs<Storage>& epilogue) {
  constexpr int kPixelsPerLane = TileOutput<Config, Storage>::kPixelsPerLane;
  constexpr int kRoundTiles = Config::STAGING_CHANNELS / 16;
  constexpr int kPitch = Config::STAGING_PITCH;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

  float count = 0.0f;
#pragma unroll
  for (int i = 0; i < kPixelsPerLane; ++i) count += tile.offset[i] >= 0 ? 1.0f : 0.0f;
  if (tile.partials != nullptr) count = warp_sum(count);

#pragma unroll
  for (int round = 0; round < Config::kRowTiles / kRoundTiles; ++round) {
    __syncthreads();  // the loop's last reads, or the previous round's, are over
    // Fragment: rows lane/4 and lane/4 + 8, columns 2 (lane % 4) and the next.
    float* corner = staging + (lane / 4) * kPitch + warp * (8 * Config::kSegmentsPerWarp) + 2 * (lane % 4);
#pragma unroll
    for (int m = 0; m < kRoundTiles; ++m)
#pragma unroll
      for (int s = 0; s < Config::kSegmentsPerWarp; ++s) {
        const float (&d)[4] = acc[s][round * kRoundTiles + m];
        *reinterpret_cast<float2*>(corner + m * 16 * kPitch + s * 8) = make_float2(d[0], d[1]);
        *reinterpret_cast<float2*>(corner + (m * 16 + 8) * kPitch + s * 8) = make_float2(d[2], d[3]);
      }
    __syncthreads();
    int channel = round * Config::STAGING_CHANNELS + warp;
    Storage* plane = tile.out + channel * tile.plane;
    const float* staged = staging + warp * kPitch + lane;
    const int end_channel = min(tile.num_channels, (round + 1) * Config::STAGING_CHANNELS);
#pragma unroll 1
    for (; channel < end_channel; channel += Config::kNumWarps) {
      float v[kPixelsPerLane];
      const float bias = channel_bias<float, Storage>(epilogue, tile.channel + channel);
      const float scale = Config::kContainers ? tile.inv_scale[channel] : 1.0f;  // a factor of 1 is compiled away
#pragma unroll
      for (int i = 0; i < kPixelsPerLane; ++i)
        v[i] = Epilogue::apply<float, Storage>(staged[32 * i] * scale + bias, epilogue, tile.channel + channel);
#pragma unroll
      for (int i = 0; i < kPixelsPerLane; ++i)
        store_if<Storage>(tile.offset[i] >= 0, plane + tile.offset[i], to_storage<Storage>(v[i]));
      plane += Config::kNumWarps * tile.plane;
      staged += Config::kNumWarps * kPitch;
      if (tile.partials != nullptr) {
        float sum = 0.0f, m2 = 0.0f;
#pragma unroll
        for (int i = 0; i < kPixelsPerLane; ++i) sum += tile.offset[i] >= 0 ? v[i] : 0.0f;
        const float mean = count > 0.0f ? warp_sum(sum) / count : 0.0f;
#pragma unroll
        for (int i = 0; i < kPixelsPerLane; ++i) {
          const float deviation = tile.offset[i] >= 0 ? v[i] - mean : 0.0f;
          m2 += deviation * deviation;
        }
        m2 = warp_sum(m2);
        if (lane == 0) tile.partials[channel] = Moments{count, mean, m2};
      }
    }
  }
}

}  // namespace cuda
}  // namespace tconv
