// data[n][c][:] = affine[n][c].apply(data[n][c][:]) in place; data [batch][channels][plane].
// The tensor is walked as one line of 16-byte vectors, whatever the plane size: a vector inside one channel looks
// its affine map up once, one that straddles channels goes element by element. Blocks run from the end
// backwards, since what was written last is what the L2 cache still holds.
#pragma once

#include "group_norm_moments.cuh"

namespace tconv {
namespace cuda {
namespace norm {

template <typename S>
struct GroupNormApplyConfig {
  static constexpr int kThreads = 256;
  static constexpr int kVectorsPerThread = 4;  // loads in flight
  static constexpr int kVector = 16 / static_cast<int>(sizeof(S));
  static constexpr int kBlockElements = kThreads * kVectorsPerThread * kVector;
};

// kBlockElements of the line, by one block of threads.
template <typename S>
__device__ __forceinline__ void apply_block(S* data, const ChannelAffine<AccOf<S>>* __restrict__ table,
                                            int64_t elements, int64_t plane, int64_t block) {
  using Config = GroupNormApplyConfig<S>;
  using Acc = AccOf<S>;
  constexpr int kVector = Config::kVector;

  // The line starts at the 16-byte boundary at or below `data`, so `first` may be negative in the first block.
  const int64_t block_first = block * Config::kBlockElements - elements_past_boundary(data);
  const int64_t block_plane = (block_first > 0 ? block_first : 0) / plane;
  const int64_t block_pixel = block_first - block_plane * plane;

  Vector<S, 16> vectors[Config::kVectorsPerThread];
#pragma unroll
  for (int i = 0; i < Config::kVectorsPerThread; ++i) {
    const int64_t first = block_first + (i * Config::kThreads + threadIdx.x) * kVector;
    if (first >= 0 && first + kVector <= elements) vectors[i] = load_streaming<S, 16>(data + first);
  }

#pragma unroll
  for (int i = 0; i < Config::kVectorsPerThread; ++i) {
    const int local = (i * Config::kThreads + threadIdx.x) * kVector;
    const int64_t first = block_first + local;
    if (first >= elements) break;
    // Channel and pixel of the first element. A plane no smaller than a block is passed at most once.
    int64_t channel = block_plane, pixel = block_pixel + local;
    if (pixel >= plane) {
      const unsigned steps =
          plane >= Config::kBlockElements ? 1u : static_cast<unsigned>(pixel) / static_cast<unsigned>(plane);
      channel += steps;
      pixel -= steps * plane;
    }
    if (first >= 0 && first + kVector <= elements) {
      ChannelAffine<Acc> affine = table[channel];
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        if (pixel + j >= plane) {  // straddles channels
          pixel -= plane;
          affine = table[++channel];
        }
        vectors[i].values[j] = to_storage<S>(affine.apply(to_acc(vectors[i].values[j])));
      }
      store_streaming(data + first, vectors[i]);
      continue;
    }
    // The ends of the tensor, where a vector is not whole.
#pragma unroll 1
    for (int j = 0; j < kVector && first + j < elements; ++j, ++pixel) {
      if (first + j < 0) continue;
      if (pixel >= plane) {
        pixel -= plane;
        ++channel;
      }
      data[first + j] = to_storage<S>(table[channel].apply(to_acc(data[first + j])));
    }
  }
}

template <typename S>
__global__ void __launch_bounds__(GroupNormApplyConfig<S>::kThreads)
    group_norm_apply_kernel(S* data, const ChannelAffine<AccOf<S>>* __restrict__ table, int64_t elements, int64_t plane,
                            int64_t num_blocks, const int* only_if) {
  if (only_if != nullptr && *only_if == 0) return;
  for (int64_t block = num_blocks - 1 - blockIdx.x; block >= 0; block -= gridDim.x)
    apply_block(data, table, elements, plane, block);
}

template <typename S>
int64_t launch_group_norm_apply(S* data, const ChannelAffine<AccOf<S>>* table, int64_t elements, int64_t plane,
                                cudaStream_t stream, const int* only_if = nullptr) {
  using Config = GroupNormApplyConfig<S>;
  if (elements == 0) return kOk;
  const int64_t blocks = ceil_div(elements + elements_past_boundary(data), Config::kBlockElements);
  // A launch that may do nothing has few blocks.
  constexpr int64_t kFewBlocks = 1024;
  const int64_t grid = only_if != nullptr && blocks > kFewBlocks ? kFewBlocks : blocks;
  return launch(group_norm_apply_kernel<S>, grid, Config::kThreads, stream, data, table, elements, plane, blocks,
                only_if);
}

}  // namespace norm
}  // namespace cuda
}  // namespace tconv
