// out[n][c][:] = behind.after(table[c].apply(in[n][c][:])); in and out [batch][channels][plane]. One warp per piece of
// a plane, from the end backwards, since what was read last for the moments is what the L2 cache still holds.
#pragma once

#include "group_norm_moments.cuh"

namespace tconv {
namespace cuda {
namespace norm {

template <typename S>
struct BatchNormApplyConfig {
  static constexpr int kThreads = 256;
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int kVector = 16 / static_cast<int>(sizeof(S));
  static constexpr int kVectorsPerLane = 4;  // loads in flight
  static constexpr int kPiece = kWarp * kVectorsPerLane * kVector;

  static int64_t num_pieces(int64_t plane) { return ceil_div(plane, kPiece); }
};

// Behind a map: nothing. after(y): what is stored of the map's y; keep(plane, map): the map, once.
struct NothingBehind {
  template <typename Acc>
  __device__ __forceinline__ Acc after(Acc y) const {
    return y;
  }
  template <typename Acc>
  __device__ __forceinline__ void keep(int64_t, const ChannelAffine<Acc>&) const {}
};

// alike: in and out begin equally far behind vectors' boundaries, so that a piece of theirs is whole vectors but for
// its ends.
template <typename S, typename Behind>
__global__ void __launch_bounds__(BatchNormApplyConfig<S>::kThreads)
    batch_norm_apply_kernel(const S* __restrict__ in, const ChannelAffine<AccOf<S>>* __restrict__ table,
                            S* __restrict__ out, unsigned num_planes, unsigned channels, int64_t plane,
                            unsigned num_pieces, bool alike, Behind behind) {
  using Config = BatchNormApplyConfig<S>;
  constexpr int kVector = Config::kVector;
  const int lane = threadIdx.x % kWarp;
  const unsigned warp = (gridDim.x - 1 - blockIdx.x) * Config::kWarps + threadIdx.x / kWarp;
  const unsigned plane_idx = warp / num_pieces;
  if (plane_idx >= num_planes) return;
  const int64_t first = int64_t{warp % num_pieces} * Config::kPiece;
  const int count = static_cast<int>(plane - first < Config::kPiece ? plane - first : Config::kPiece);
  in += plane_idx * plane + first;
  out += plane_idx * plane + first;
  const ChannelAffine<AccOf<S>> affine = table[plane_idx % channels];
  if (plane_idx < channels && first == 0 && lane == 0) behind.keep(plane_idx, affine);

  const auto apply = [&](S v) { return to_storage<S>(behind.after(affine.apply(to_acc(v)))); };
  if (!alike) {
#pragma unroll 4
    for (int i = lane; i < count; i += kWarp) out[i] = apply(in[i]);
    return;
  }
  const int shift = elements_past_boundary(in);
  Vector<S, 16> vectors[Config::kVectorsPerLane];
#pragma unroll
  for (int i = 0; i < Config::kVectorsPerLane; ++i) {
    const int at = (i * kWarp + lane) * kVector - shift;
    if (at >= 0 && at + kVector <= count) {
      vectors[i] = load_streaming<S, 16>(in + at);
      continue;
    }
#pragma unroll
    for (int j = 0; j < kVector; ++j)
      if (at + j >= 0 && at + j < count) vectors[i].values[j] = in[at + j];
  }
#pragma unroll
  for (int i = 0; i < Config::kVectorsPerLane; ++i) {
    const int at = (i * kWarp + lane) * kVector - shift;
#pragma unroll
    for (int j = 0; j < kVector; ++j) vectors[i].values[j] = apply(vectors[i].values[j]);
    if (at >= 0 && at + kVector <= count) {
      *reinterpret_cast<Vector<S, 16>*>(out + at) = vectors[i];  // read next, so kept in the caches
      continue;
    }
#pragma unroll
    for (int j = 0; j < kVector; ++j)
      if (at + j >= 0 && at + j < count) out[at + j] = vectors[i].values[j];
  }
  const int last = Config::kPiece - shift + lane;  // the vectors' last one ends before the piece does
  if (lane < shift && last < count) out[last] = apply(in[last]);
}

template <typename S, typename Behind = NothingBehind>
int64_t launch_batch_norm_apply(const S* in, const ChannelAffine<AccOf<S>>* table, S* out, int64_t batch,
                                int64_t channels, int64_t plane, cudaStream_t stream, const Behind& behind = {}) {
  using Config = BatchNormApplyConfig<S>;
  const int64_t num_pieces = Config::num_pieces(plane);
  const int64_t blocks = ceil_div(batch * channels * num_pieces, Config::kWarps);
  if (blocks * Config::kWarps > UINT32_MAX) return cudaErrorInvalidConfiguration;  // warps are numbered in 32 bits
  const bool alike = elements_past_boundary(in) == elements_past_boundary(out);
  return launch(batch_norm_apply_kernel<S, Behind>, blocks, Config::kThreads, stream, in, table, out, batch * channels,
                channels, plane, num_pieces, alike, behind);
}

}  // namespace norm
}  // namespace cuda
}  // namespace tconv
