// Average or largest value of windows of volumes [planes, depth, height, width] that lie side by side, with a tail's
// steps behind it: a thread makes one output, neighbouring threads neighbouring ones. Bound by memory.
#pragma once

#include "../tail_call.h"
#include "../epilogue.h"
#include "../generated_tail.h"
#include "fast_divisor.h"
#include "pooled_window.cuh"

namespace tconv {
namespace cuda {

template <typename WindowOf, bool kLargestOf>
struct WindowPoolConfig {
  using Window = WindowOf;
  static constexpr int kThreads = 256;
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

template <typename Step, typename Config, typename S>
__global__ void __launch_bounds__(Config::kThreads) window_pool_kernel(WindowPoolArgs<S> a) {
  const int64_t output = int64_t{blockIdx.x} * Config::kThreads + threadIdx.x;
  if (output >= a.outputs) return;
  const auto plane = static_cast<uint32_t>(a.by_volume.quotient(output));
  const auto place = static_cast<uint32_t>(output - int64_t{plane} * a.volume);
  const uint32_t d = a.by_image.quotient(place), within = place - d * a.image;
  const uint32_t h = a.by_columns.quotient(within), w = within - h * a.columns;
  const typename Config::Window window(a.window_d, a.window_h, a.window_w);
  const S* const values = a.value + plane * a.in_volume + int64_t{d} * window.depth() * a.in_image +
                          int64_t{h} * window.height() * a.in_columns + int64_t{w} * window.width();
  int from;
  const float pooled = window.template pooled<Config::kLargest>(values, a.in_image, a.in_columns, from);
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
  return with_window(call, [&](auto window) -> int64_t {
    using Config = WindowPoolConfig<decltype(window), kLargest>;
    return norm::launch(window_pool_kernel<Step, Config, S>, norm::ceil_div(args.outputs, Config::kThreads),
                        Config::kThreads, stream, args);
  });
}

}  // namespace cuda
}  // namespace tconv
