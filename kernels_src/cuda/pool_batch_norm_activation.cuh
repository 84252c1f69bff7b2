// BatchNorm + activation + max-pool in one sweep over the convolution's output.
//   out[n][c][oh][ow] = max over the window of activation(affine[c].apply(in[n][c][ih][iw]))
// in [batch][channels][in_h][in_w] -> out [batch][channels][out_h][out_w]. The activation never decreases,
// so it is applied once, to the window's maximum. A window without any pixel gives -Inf, as PyTorch's.
// A 1 x 1 window makes it BatchNorm + activation of data that were pooled before.
// `partials`, where not null, receives moments of the outputs: [batch][num_partials][channels].
// One warp owns a piece of one output plane and keeps its outputs in registers for the moments. Blocks run from the end
// backwards, since what was written last is what the L2 cache still holds.
#pragma once

#include "../generated_activation.h"
#include "batch_norm_maps.cuh"
#include "pool_window.cuh"

namespace tconv {
namespace cuda {
namespace norm {

struct PoolConfig {
  static constexpr int kThreads = 256;
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int kMinBlocks = 1;        // said because ptxas would else spill in fp64 to stay within 64 registers
  static constexpr int kOutputsInFlight = 4;  // per lane
  static constexpr int kRounds = 3;
  static constexpr int kOutputsPerLane = kOutputsInFlight * kRounds;
  static constexpr int kMaxPiece = kWarp * kOutputsPerLane;

  // Pieces of equal size (but the last) per output plane.
  TCONV_HD static int64_t num_partials(int64_t out_plane) { return (out_plane + kMaxPiece - 1) / kMaxPiece; }
  TCONV_HD static int piece(int64_t out_plane) {
    const int64_t pieces = num_partials(out_plane);
    return static_cast<int>((out_plane + pieces - 1) / pieces);
  }
};

// BatchNorm and activation as a transform of GroupNorm's inputs (group_norm_single_block.cuh).
template <typename S>
struct BatchNormActivation {
  static constexpr bool kIdentity = false;
  BatchNormMaps<S> maps;

  struct OfChannel {
    ChannelAffine<AccOf<S>> affine;
    __device__ __forceinline__ AccOf<S> apply(AccOf<S> v) const { return Activation::apply<AccOf<S>>(affine.apply(v)); }
  };
  __device__ __forceinline__ OfChannel of_channel(int64_t channel) const { return {maps.of_channel(channel)}; }
};

// The 2 x 2 windows of one lane: both columns of a row in one load.
template <typename S>
struct PairWindow {
  Vector<S, 2 * sizeof(S)> upper, lower;

  __device__ __forceinline__ void load(const S* in, int in_w) {
    upper = load_streaming<S, 2 * sizeof(S)>(in);
    lower = load_streaming<S, 2 * sizeof(S)>(in + in_w);
  }

  __device__ __forceinline__ AccOf<S> maximum(const ChannelAffine<AccOf<S>>& affine) const {
    return max_or_nan(max_or_nan(affine.apply(to_acc(upper.values[0])), affine.apply(to_acc(upper.values[1]))),
                      max_or_nan(affine.apply(to_acc(lower.values[0])), affine.apply(to_acc(lower.values[1]))));
  }
};

// Any window; `in` is the channel's plane.
template <typename S>
__device__ __forceinline__ AccOf<S> pool_any_window(const S* __restrict__ in, const PoolGeometry& g, int out_row,
                                                    int out_col, const ChannelAffine<AccOf<S>>& affine) {
  using Acc = AccOf<S>;
  const WindowSpan rows = window_span(out_row, g.stride_h, g.padding_h, g.dilation_h, g.kernel_h, g.in_h);
  const WindowSpan cols = window_span(out_col, g.stride_w, g.padding_w, g.dilation_w, g.kernel_w, g.in_w);
  constexpr Acc kLowest = -static_cast<Acc>(INFINITY);
  if (rows.first >= rows.end || cols.first >= cols.end) return kLowest;
  Acc maximum = kLowest;
  for (int64_t row = rows.first; row < rows.end; row += g.dilation_h)
    for (int64_t col = cols.first; col < cols.end; col += g.dilation_w)
      maximum = max_or_nan(maximum, affine.apply(to_acc(in[row * g.in_w + col])));
  return Activation::apply<Acc>(maximum);
}

template <typename S, bool kPairs>
__global__ void __launch_bounds__(PoolConfig::kThreads, PoolConfig::kMinBlocks)
    batch_norm_activation_max_pool_kernel(const S* __restrict__ in, S* __restrict__ out, BatchNormMaps<S> maps,
                                          PartialOf<S>* __restrict__ partials, unsigned num_planes, unsigned channels,
                                          unsigned num_partials, int piece_outputs, PoolGeometry g) {
  using Config = PoolConfig;
  using Acc = AccOf<S>;
  const int lane = threadIdx.x % kWarp;
  const unsigned warp = (gridDim.x - 1 - blockIdx.x) * Config::kWarps + threadIdx.x / kWarp;
  const unsigned plane_idx = warp / num_partials, piece = warp % num_partials;
  if (plane_idx >= num_planes) return;
  const unsigned sample = plane_idx / channels, channel = plane_idx % channels;
  const int64_t out_plane = g.out_plane(), first = int64_t{piece} * piece_outputs;
  const int count = static_cast<int>(out_plane - first < piece_outputs ? out_plane - first : piece_outputs);
  const int first_row = static_cast<int>(first / g.out_w), first_col = static_cast<int>(first % g.out_w);

  in += plane_idx * g.in_plane();
  out += plane_idx * out_plane + first;
  const ChannelAffine<Acc> affine = maps.of_channel(channel);

  Acc values[Config::kOutputsPerLane];
#pragma unroll
  for (int round = 0; round < Config::kRounds; ++round) {
    constexpr int kInFlight = Config::kOutputsInFlight;
    if (round * kInFlight * kWarp >= count) break;
    PairWindow<S> windows[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int output = (round * kInFlight + i) * kWarp + lane;
      if (output >= count) continue;
      const unsigned steps = first_col + output;
      const int row = first_row + static_cast<int>(steps / g.out_w), col = static_cast<int>(steps % g.out_w);
      if constexpr (kPairs) {
        windows[i].load(in + int64_t{2 * row} * g.in_w + 2 * col, g.in_w);
      } else {
        values[round * kInFlight + i] = pool_any_window(in, g, row, col, affine);
      }
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int output = (round * kInFlight + i) * kWarp + lane;
      if (output >= count) continue;
      Acc& value = values[round * kInFlight + i];
      if constexpr (kPairs) value = Activation::apply<Acc>(windows[i].maximum(affine));
      const S stored = to_storage<S>(value);
      out[output] = stored;
      value = to_acc(stored);  // the moments are those of the tensor that GroupNorm reads
    }
  }

  if (partials == nullptr) return;
  const PartialOf<S> m = warp_moments<PartialOf<S>>(values, count, lane);
  if (lane == 0) partials[(int64_t{sample} * num_partials + piece) * channels + channel] = m;
}

template <typename S>
int64_t launch_batch_norm_activation_max_pool(const S* in, S* out, const BatchNormMaps<S>& maps, PartialOf<S>* partials,
                                              int64_t batch, int64_t channels, const PoolGeometry& g,
                                              cudaStream_t stream) {
  using Config = PoolConfig;
  const int64_t num_planes = batch * channels;
  if (num_planes * g.out_plane() == 0) return kOk;
  const int64_t num_partials = Config::num_partials(g.out_plane());
  const int64_t blocks = ceil_div(num_planes * num_partials, Config::kWarps);
  if (blocks * Config::kWarps > UINT32_MAX) return cudaErrorInvalidConfiguration;  // warps are numbered in 32 bits
  // Rows of even length keep every pair on its own boundary.
  const bool pairs = g.is_2x2() && g.in_w % 2 == 0 && reinterpret_cast<uintptr_t>(in) % (2 * sizeof(S)) == 0;
  const auto kernel =
      pairs ? batch_norm_activation_max_pool_kernel<S, true> : batch_norm_activation_max_pool_kernel<S, false>;
  return launch(kernel, blocks, Config::kThreads, stream, in, out, maps, partials, num_planes, channels, num_partials,
                Config::piece(g.out_plane()), g);
}

}  // namespace norm
}  // namespace cuda
}  // namespace tconv
