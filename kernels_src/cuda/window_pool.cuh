// Average or largest value of windows of volumes [planes, depth, height, width] that lie side by side, with a tail's
// steps behind it: a thread makes one output, neighbouring threads neighbouring ones. Bound by memory.
#pragma once

#include "../tail_call.h"
#include "../epilogue.h"
#include "../generated_tail.h"
#include "fast_divisor.h"
#include "group_norm_moments.cuh"

namespace tconv {
namespace cuda {

// kSide: of windows that are cubes, which are loaded at once; 0: any.
template <int kSideOf, bool kLargestOf>
struct WindowPoolConfig {
  static constexpr int kThreads = 256;
  static constexpr int kSide = kSideOf;
  static constexpr bool kLargest = kLargestOf;
};

template <typename S>
struct WindowPoolArgs {
  const S* value;
  S* result;
  int64_t outputs;
  int volume, image, columns;  // outputs of a plane, of an image of it, of a row of that
  int window_d, window_h, window_w;
  int64_t in_volume, in_image, in_columns;
  FastDivisor64 by_volume;
  FastDivisor by_image, by_columns, by_channels;
  int channels;
  EpilogueArgs<S> steps;
};

// NaN stays, as in PyTorch.
template <bool kLargest>
__device__ __forceinline__ float pooled_with(float so_far, float v) {
  if constexpr (kLargest)
    return v > so_far || isnan(v) ? v : so_far;
  else
    return so_far + v;
}

template <typename Step, typename Config, typename S>
__global__ void __launch_bounds__(Config::kThreads) window_pool_kernel(WindowPoolArgs<S> a) {
  constexpr int kSide = Config::kSide;
  const int64_t output = int64_t{blockIdx.x} * Config::kThreads + threadIdx.x;
  if (output >= a.outputs) return;
  const auto plane = static_cast<uint32_t>(a.by_volume.quotient(output));
  const auto place = static_cast<uint32_t>(output - int64_t{plane} * a.volume);
  const uint32_t d = a.by_image.quotient(place), within = place - d * a.image;
  const uint32_t h = a.by_columns.quotient(within), w = within - h * a.columns;
  const int window_d = kSide ? kSide : a.window_d, window_h = kSide ? kSide : a.window_h;
  const int window_w = kSide ? kSide : a.window_w;
  const S* from = a.value + plane * a.in_volume + int64_t{d} * window_d * a.in_image +
                  int64_t{h} * window_h * a.in_columns + int64_t{w} * window_w;
  float pooled = Config::kLargest ? -INFINITY : 0.0f;
  if constexpr (kSide > 0) {
    S values[kSide * kSide * kSide];
#pragma unroll
    for (int i = 0; i < kSide * kSide * kSide; ++i)
      values[i] = from[i / (kSide * kSide) * a.in_image + i / kSide % kSide * a.in_columns + i % kSide];
#pragma unroll
    for (int i = 0; i < kSide * kSide * kSide; ++i)
      pooled = pooled_with<Config::kLargest>(pooled, norm::to_acc(values[i]));
  } else {
    for (int i = 0; i < window_d; ++i)
      for (int j = 0; j < window_h; ++j)
        for (int k = 0; k < window_w; ++k)
          pooled = pooled_with<Config::kLargest>(pooled, norm::to_acc(from[i * a.in_image + j * a.in_columns + k]));
  }
  if constexpr (!Config::kLargest) pooled /= static_cast<float>(int64_t{window_d} * window_h * window_w);
  const int64_t channel = plane - a.by_channels.quotient(plane) * a.channels;
  a.result[output] = to_storage<S>(Step::template apply<float, S>(pooled, a.steps, channel));
}

// kUnsupportedKernel where planes, or the values of one, need 64-bit numbers.
template <typename Step, bool kLargest, typename S>
int64_t launch_window_pool(const TailCall& call) {
  const int64_t planes = call.batch * call.channels;
  if (planes > INT32_MAX || call.plane > INT32_MAX)
    return unsupported_tail(call, "2^31 planes, or values of one, or more");
  WindowPoolArgs<S> args{};
  args.value = static_cast<const S*>(call.value), args.result = static_cast<S*>(call.result);
  args.columns = static_cast<int>(call.out[2]), args.image = static_cast<int>(call.out[1]) * args.columns;
  args.volume = static_cast<int>(call.out[0]) * args.image;
  args.outputs = planes * args.volume;
  args.window_d = static_cast<int>(call.window[0]), args.window_h = static_cast<int>(call.window[1]);
  args.window_w = static_cast<int>(call.window[2]);
  args.in_columns = call.in[2], args.in_image = call.in[1] * call.in[2], args.in_volume = call.plane;
  args.by_volume = FastDivisor64::make(static_cast<uint64_t>(args.volume));
  args.by_image = FastDivisor::make(static_cast<uint32_t>(args.image));
  args.by_columns = FastDivisor::make(static_cast<uint32_t>(args.columns));
  args.by_channels = FastDivisor::make(static_cast<uint32_t>(call.channels));
  args.channels = static_cast<int>(call.channels);
  args.steps = make_epilogue_args<S>(call.conv);
  const auto stream = static_cast<cudaStream_t>(call.conv.stream);
  const auto launched = [&](auto config) {
    using Config = decltype(config);
    return norm::launch(window_pool_kernel<Step, Config, S>, norm::ceil_div(args.outputs, Config::kThreads),
                        Config::kThreads, stream, args);
  };
  const bool cubes = call.window[0] == 2 && call.window[1] == 2 && call.window[2] == 2;
  return cubes ? launched(WindowPoolConfig<2, kLargest>{}) : launched(WindowPoolConfig<0, kLargest>{});
}

}  // namespace cuda
}  // namespace tconv
