// Gradients of softmax over the channels of [batch, channels, plane] and of a tail's steps behind it. With p = softmax
// and d the gradient ahead of the steps,
//
//   grad_value = p * (d - sum(p * d)),   the sum over a position's channels
//
// (aten/src/ATen/native/cuda/SoftMax.cu in PyTorch). A warp's lanes are neighbouring positions, and one warp or several
// hold the channels of a position, as in channel_softmax.cuh. Bound by memory: two reads and one write.
#pragma once

#include "device_limits.h"
#include "fast_divisor.h"
#include "tail_gradient_sums.cuh"
#include "warp_group.cuh"

namespace tconv {
namespace cuda {

// kHeld: channels of a position that a thread holds; kGroup: warps that share a position's channels.
template <int kHeldOf, int kGroupOf>
struct ChannelSoftmaxGradientConfig {
  static constexpr int kThreads = 256;
  static constexpr int kWarps = kThreads / norm::kWarp;
  static constexpr int kHeld = kHeldOf, kGroup = kGroupOf;
  static constexpr int kPositions = kWarps / kGroup * norm::kWarp;  // of a block at a time
  static constexpr int kFewestResident = kHeld <= 16 ? 2 : 1;       // blocks
  static constexpr int kBlocksPerProcessor = kFewestResident * 8;   // where each leaves a part of sums
};

template <typename S>
struct ChannelSoftmaxGradientArgs {
  const S *value, *grad;
  S* grad_value;
  float* parts;              // [blocks][channels], of the operand `summed`
  int64_t positions, plane;  // of all samples; of one
  int64_t turns;             // of a block
  int channels, summed;      // summed: an operand of the steps, or -1
  FastDivisor64 by_plane;
  EpilogueArgs<S> steps;
};

// Of each channel, over the block's lanes and the warps that have it.
template <typename Config>
__device__ __forceinline__ void leave_channels(const float (&of_lane)[Config::kHeld], float* parts, int channels) {
  __shared__ float of_warps[Config::kWarps][Config::kHeld];
  const int lane = threadIdx.x % norm::kWarp, warp = threadIdx.x / norm::kWarp;
#pragma unroll
  for (int i = 0; i < Config::kHeld; ++i) {
    float sum = of_lane[i];
    for (int distance = norm::kWarp / 2; distance > 0; distance /= 2)
      sum += __shfl_xor_sync(norm::kAllLanes, sum, distance);
    if (lane == 0) of_warps[warp][i] = sum;
  }
  __syncthreads();
  for (int channel = threadIdx.x; channel < channels; channel += Config::kThreads) {
    float sum = 0;
    for (int i = channel % Config::kGroup; i < Config::kWarps; i += Config::kGroup)
      sum += of_warps[i][channel / Config::kGroup];
    parts[int64_t{blockIdx.x} * channels + channel] = sum;
  }
}

template <typename Step, typename Config, typename S>
__global__ void __launch_bounds__(Config::kThreads, Config::kFewestResident)
    channel_softmax_gradient_kernel(ChannelSoftmaxGradientArgs<S> a) {
  constexpr int kHeld = Config::kHeld, kGroup = Config::kGroup;
  __shared__ float maxima[Config::kThreads], sums[Config::kThreads], products[Config::kThreads];
  const int warp = threadIdx.x / norm::kWarp;
  const int first = warp % kGroup;  // of its channels, which are kGroup apart
  const int count = (a.channels - first + kGroup - 1) / kGroup;
  const int64_t pitch = kGroup * a.plane;
  float of_operand[kHeld] = {};
  for (int64_t turn = 0; turn < a.turns; ++turn) {
    const int64_t position =
        (turn * gridDim.x + blockIdx.x) * Config::kPositions + warp / kGroup * norm::kWarp + threadIdx.x % norm::kWarp;
    const bool present = position < a.positions;
    const int64_t sample = a.by_plane.quotient(present ? position : 0);
    // Of the first of the thread's channels.
    const int64_t begin = (sample * a.channels + first) * a.plane + (position - sample * a.plane);
    S value[kHeld], grad[kHeld];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      value[i] = to_storage<S>(-INFINITY), grad[i] = to_storage<S>(0.0f);
      if (present && i < count) {
        value[i] = a.value[begin + i * pitch];
        grad[i] = a.grad[begin + i * pitch];
      }
    }
    float held[kHeld], largest = -INFINITY, sum = 0, product = 0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      held[i] = norm::to_acc(value[i]);
      largest = fmaxf(largest, held[i]);
    }
    if constexpr (kGroup > 1)
      largest = over_group<Config>(largest, maxima, [](float x, float y) { return fmaxf(x, y); });
    // fmaxf leaves NaN out, which is in the sum then.
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (i < count) sum += held[i] = expf(held[i] - largest);
    if constexpr (kGroup > 1) sum = over_group<Config>(sum, sums, [](float x, float y) { return x + y; });
    const float scale = 1.0f / sum;
    float ahead[kHeld];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      ahead[i] = 0;
      if (i >= count) continue;
      held[i] *= scale;
      float of_one[kMostSums<Step>] = {};
      ahead[i] = Step::template gradient<float, S>(held[i], norm::to_acc(grad[i]), a.steps, first + i * kGroup, of_one);
      product += held[i] * ahead[i];
#pragma unroll
      for (int k = 0; k < Step::kVectors; ++k)
        if (present && k == a.summed) of_operand[i] += of_one[k];
    }
    if constexpr (kGroup > 1) product = over_group<Config>(product, products, [](float x, float y) { return x + y; });
    if (present) {
      S* to = a.grad_value + begin;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        if (i < count) *to = to_storage<S>(held[i] * (ahead[i] - product));
        to += pitch;
      }
    }
  }
  if (a.summed >= 0) leave_channels<Config>(of_operand, a.parts, a.channels);
}

// take(the kernel's Config, blocks, turns of each).
template <typename Config, typename Take>
int64_t with_channel_softmax_gradient_held(const TailGradientCall& call, const Take& take) {
  const int64_t needed = norm::ceil_div(call.batch * call.plane, Config::kPositions);
  if (call.wanted == 0) return take(Config{}, needed, int64_t{1});
  DeviceLimits device;
  TCONV_RETURN_IF_ERROR(query_device_limits(&device));
  const int64_t most = int64_t{device.sm_count} * Config::kBlocksPerProcessor;
  const int64_t blocks = needed < most ? needed : most;
  return take(Config{}, blocks, norm::ceil_div(needed, blocks));
}

// kUnsupportedKernel for more channels than kMostSoftmaxChannels, and where more than one sum is wanted.
template <typename Take>
int64_t with_channel_softmax_gradient(const TailGradientCall& call, const Take& take) {
  if (call.channels > kMostSoftmaxChannels) return unsupported_tail(call, "more than 256 channels");
  if ((call.wanted & (call.wanted - 1)) != 0) return unsupported_tail(call, "gradients of more than one operand");
  const auto held = [&](auto config) { return with_channel_softmax_gradient_held<decltype(config)>(call, take); };
  if (call.channels <= 16) return held(ChannelSoftmaxGradientConfig<16, 1>{});
  if (call.channels <= 32) return held(ChannelSoftmaxGradientConfig<16, 2>{});
  if (call.channels <= 64) return held(ChannelSoftmaxGradientConfig<16, 4>{});
  if (call.channels <= 128) return held(ChannelSoftmaxGradientConfig<16, 8>{});
  static_assert(kMostSoftmaxChannels == 32 * 8, "the last kernel holds all of them");
  return held(ChannelSoftmaxGradientConfig<32, 8>{});
}

inline int64_t channel_softmax_gradient_workspace_bytes(const TailGradientCall& call) {
  return with_channel_softmax_gradient(
      call, [&](auto, int64_t blocks, int64_t) { return TailSums{blocks, call.channels}.bytes(call); });
}

template <typename Step, typename S>
int64_t launch_channel_softmax_gradient(const TailGradientCall& call) {
  ChannelSoftmaxGradientArgs<S> args{};
  args.value = static_cast<const S*>(call.value), args.grad = static_cast<const S*>(call.grad);
  args.grad_value = static_cast<S*>(call.grad_value);
  args.positions = call.batch * call.plane, args.plane = call.plane;
  args.channels = static_cast<int>(call.channels);
  args.summed = call.num_sums() - 1;
  args.by_plane = FastDivisor64::make(static_cast<uint64_t>(call.plane));
  args.steps = make_epilogue_args<S>(call.conv);
  return with_channel_softmax_gradient(call, [&](auto config, int64_t blocks, int64_t turns) -> int64_t {
    using Config = decltype(config);
    const TailSums sums{blocks, call.channels};
    args.parts = TailSums::parts(call) + (args.summed > 0 ? args.summed * sums.of_one() : 0);
    args.turns = turns;
    TCONV_RETURN_IF_ERROR(norm::launch(channel_softmax_gradient_kernel<Step, Config, S>, blocks, Config::kThreads,
                                       static_cast<cudaStream_t>(call.conv.stream), args));
    return sums.template add_up<S>(call);
  });
}

}  // namespace cuda
}  // namespace tconv
