// Softmax over the channels of [batch, channels, plane], with a tail's steps behind it: one read and one write. Bound
// by memory. A warp's lanes are neighbouring positions, so that its loads are contiguous whatever the plane; one warp
// or several hold the channels of a position in registers.
#pragma once

#include "../tail_call.h"
#include "../epilogue.h"
#include "../generated_tail.h"
#include "fast_divisor.h"
#include "warp_group.cuh"

namespace tconv {
namespace cuda {

// kHeld: channels of a position that a thread holds; kGroup: warps that share a position's channels.
template <int kHeldOf, int kGroupOf>
struct ChannelSoftmaxConfig {
  static constexpr int kThreads = 256;
  static constexpr int kWarps = kThreads / norm::kWarp;
  static constexpr int kHeld = kHeldOf, kGroup = kGroupOf;
  static constexpr int kPositions = kWarps / kGroup * norm::kWarp;  // of a block
  static constexpr int kAtOnce = 4;                                 // channels of a thread that are stored together
  static constexpr int kFewestResident = 64 / kHeld;                // blocks: loads in flight, and registers for them
};

template <typename S>
struct ChannelSoftmaxArgs {
  const S* value;
  S* result;
  int64_t positions, plane;  // of all samples; of one
  int channels;
  FastDivisor64 by_plane;
  EpilogueArgs<S> steps;
};

template <typename Step, typename Config, typename S>
__global__ void __launch_bounds__(Config::kThreads, Config::kFewestResident)
    channel_softmax_kernel(ChannelSoftmaxArgs<S> a) {
  constexpr int kHeld = Config::kHeld, kGroup = Config::kGroup;
  const int warp = threadIdx.x / norm::kWarp;
  const int first = warp % kGroup;  // of its channels, which are kGroup apart
  const int count = (a.channels - first + kGroup - 1) / kGroup;
  const int64_t position =
      int64_t{blockIdx.x} * Config::kPositions + warp / kGroup * norm::kWarp + threadIdx.x % norm::kWarp;
  const bool present = position < a.positions;
  const int64_t sample = a.by_plane.quotient(present ? position : 0);
  // Of the first of the thread's channels.
  const int64_t begin = (sample * a.channels + first) * a.plane + (position - sample * a.plane);
  const int64_t pitch = kGroup * a.plane;
  const S* from = a.value + begin;
  float held[kHeld], largest = -INFINITY;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    held[i] = -INFINITY;
    if (present && i < count) held[i] = norm::to_acc(*from);
    from += pitch;
  }
#pragma unroll
  for (int i = 0; i < kHeld; ++i) largest = fmaxf(largest, held[i]);
  if constexpr (kGroup > 1) {
    __shared__ float maxima[Config::kThreads];
    largest = over_group<Config>(largest, maxima, [](float x, float y) { return fmaxf(x, y); });
  }
  // fmaxf leaves NaN out, which is in the sum then.
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (i < count) sum += held[i] = expf(held[i] - largest);
  }
  if constexpr (kGroup > 1) {
    __shared__ float sums[Config::kThreads];
    sum = over_group<Config>(sum, sums, [](float x, float y) { return x + y; });
  }
  if (!present) return;
  const float scale = 1.0f / sum;
  int64_t pitch_again = pitch;  // or the addresses of the loads would be held until the stores
  asm volatile("" : "+l"(pitch_again));
  S* to = a.result + begin;
  // Some at a time: behind a store the steps' operands would wait for it, and those of all channels take registers.
#pragma unroll
  for (int i = 0; i < kHeld; i += Config::kAtOnce) {
#pragma unroll
    for (int k = i; k < i + Config::kAtOnce; ++k)
      if (k < count) held[k] = Step::template apply<float, S>(held[k] * scale, a.steps, first + k * kGroup);
#pragma unroll
    for (int k = i; k < i + Config::kAtOnce; ++k) {
      if (k < count) *to = to_storage<S>(held[k]);
      to += pitch_again;
    }
  }
}

template <typename Step, int kHeld, int kGroup, typename S>
int64_t launch_channel_softmax_held(const ChannelSoftmaxArgs<S>& args, cudaStream_t stream) {
  using Config = ChannelSoftmaxConfig<kHeld, kGroup>;
  return norm::launch(channel_softmax_kernel<Step, Config, S>, norm::ceil_div(args.positions, Config::kPositions),
                      Config::kThreads, stream, args);
}

// kUnsupportedKernel for more channels than kMostSoftmaxChannels.
template <typename Step, typename S>
int64_t launch_channel_softmax(const TailCall& call) {
  if (call.channels > kMostSoftmaxChannels) return unsupported_tail(call, "more than 256 channels");
  ChannelSoftmaxArgs<S> args{};
  args.value = static_cast<const S*>(call.value), args.result = static_cast<S*>(call.result);
  args.positions = call.batch * call.plane, args.plane = call.plane;
  args.channels = static_cast<int>(call.channels);
  args.by_plane = FastDivisor64::make(static_cast<uint64_t>(call.plane));
  args.steps = make_epilogue_args<S>(call.conv);
  const auto stream = static_cast<cudaStream_t>(call.conv.stream);
  if (call.channels <= 16) return launch_channel_softmax_held<Step, 16, 1>(args, stream);
  if (call.channels <= 32) return launch_channel_softmax_held<Step, 16, 2>(args, stream);
  if (call.channels <= 64) return launch_channel_softmax_held<Step, 16, 4>(args, stream);
  // In 32 bits more of a channel's neighbours for a block: 0.63 ms in place of 0.90 for planes of 129 x 129.
  if constexpr (sizeof(S) == 4)
    if (call.channels <= 128) return launch_channel_softmax_held<Step, 32, 4>(args, stream);
  if (call.channels <= 128) return launch_channel_softmax_held<Step, 16, 8>(args, stream);
  static_assert(kMostSoftmaxChannels == 32 * 8, "the last kernel holds all of them");
  return launch_channel_softmax_held<Step, 32, 8>(args, stream);
}

}  // namespace cuda
}  // namespace tconv
