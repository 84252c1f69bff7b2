// out[n][c][h][:] = softmax(table[c].apply(in[n][c][h][:])): what batch_norm_apply.cuh does, and softmax over each row
// while it is in registers. in and out [batch][channels][plane], rows of kWidth columns. One warp per piece of a plane,
// which holds whole rows; pieces from the end backwards.
#pragma once

#include "batch_norm_apply.cuh"

namespace tconv {
namespace cuda {
namespace norm {

template <int kWidth>
struct BatchNormSoftmaxConfig : BatchNormApplyConfig<float> {
  static constexpr int kRowLanes = kWidth / kVector < kWarp ? kWidth / kVector : kWarp;
  static constexpr int kRowVectors = kWidth / (kVector * kRowLanes);  // of a lane
  static_assert(kRowLanes * kRowVectors * kVector == kWidth && kPiece % kWidth == 0, "a piece holds whole rows");
};

// The same on every lane of a row.
template <int kLanes, typename F>
__device__ __forceinline__ float over_lanes(float value, F f) {
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) value = f(value, __shfl_xor_sync(kAllLanes, value, step));
  return value;
}

template <int kWidth>
__global__ void __launch_bounds__(BatchNormSoftmaxConfig<kWidth>::kThreads)
    batch_norm_softmax_kernel(const float* __restrict__ in, const ChannelAffine<float>* __restrict__ table,
                              float* __restrict__ out, unsigned num_planes, unsigned channels, int64_t plane,
                              unsigned num_pieces) {
  using Config = BatchNormSoftmaxConfig<kWidth>;
  constexpr int kVector = Config::kVector;
  const int lane = threadIdx.x % kWarp;
  const unsigned warp = (gridDim.x - 1 - blockIdx.x) * Config::kWarps + threadIdx.x / kWarp;
  const unsigned plane_idx = warp / num_pieces;
  if (plane_idx >= num_planes) return;
  const int64_t first = int64_t{warp % num_pieces} * Config::kPiece;
  const int count = static_cast<int>(plane - first < Config::kPiece ? plane - first : Config::kPiece);
  in += plane_idx * plane + first;
  out += plane_idx * plane + first;
  const ChannelAffine<float> affine = table[plane_idx % channels];

  Vector<float, 16> vectors[Config::kVectorsPerLane];
#pragma unroll
  for (int i = 0; i < Config::kVectorsPerLane; ++i) {
    const int at = (i * kWarp + lane) * kVector;
    vectors[i] = at < count ? load_streaming<float, 16>(in + at) : Vector<float, 16>{};
  }
#pragma unroll
  for (int row = 0; row < Config::kVectorsPerLane; row += Config::kRowVectors) {
    float largest = -INFINITY;
#pragma unroll
    for (int i = row; i < row + Config::kRowVectors; ++i)
#pragma unroll
      for (float& value : vectors[i].values) value = affine.apply(value), largest = fmaxf(largest, value);
    largest = over_lanes<Config::kRowLanes>(largest, [](float a, float b) { return fmaxf(a, b); });
    float sum = 0;
#pragma unroll
    for (int i = row; i < row + Config::kRowVectors; ++i)
#pragma unroll
      for (float& value : vectors[i].values) value = expf(value - largest), sum += value;
    sum = over_lanes<Config::kRowLanes>(sum, [](float a, float b) { return a + b; });
#pragma unroll
    for (int i = row; i < row + Config::kRowVectors; ++i) {
#pragma unroll
      for (float& value : vectors[i].values) value /= sum;
      const int at = (i * kWarp + lane) * kVector;
      if (at < count) *reinterpret_cast<Vector<float, 16>*>(out + at) = vectors[i];
    }
  }
}

// kUnsupportedKernel for rows of another length than 64, 128, 256 or 512 columns, or off vectors' boundaries.
inline int64_t launch_batch_norm_softmax(const float* in, const ChannelAffine<float>* table, float* out, int64_t batch,
                                         int64_t channels, int64_t plane, int64_t width, cudaStream_t stream) {
  using Config = BatchNormApplyConfig<float>;
  if (elements_past_boundary(in) != 0 || elements_past_boundary(out) != 0) return kUnsupportedKernel;
  const int64_t num_pieces = Config::num_pieces(plane);
  const int64_t blocks = ceil_div(batch * channels * num_pieces, Config::kWarps);
  if (blocks * Config::kWarps > UINT32_MAX) return cudaErrorInvalidConfiguration;  // warps are numbered in 32 bits
  const auto launched = [&](auto kernel) {
    return launch(kernel, blocks, Config::kThreads, stream, in, table, out, batch * channels, channels, plane,
                  num_pieces);
  };
  switch (width) {
    case 64: return launched(batch_norm_softmax_kernel<64>);
    case 128: return launched(batch_norm_softmax_kernel<128>);
    case 256: return launched(batch_norm_softmax_kernel<256>);
    case 512: return launched(batch_norm_softmax_kernel<512>);
    default: return kUnsupportedKernel;
  }
}

}  // namespace norm
}  // namespace cuda
}  // namespace tconv
