// Gradients of pools over windows side by side and of a tail's steps behind them: a thread forms those of one window,
// or zeros where values are left out behind the last whole one. The largest value of a window takes all of its
// gradient: the first one, or the last NaN, as PyTorch's forward finds it
// (aten/src/ATen/native/cuda/DilatedMaxPool3d.cu). Bound by memory: one read, of it and of the result's gradient, and
// one write.
#pragma once

#include "fast_divisor.h"
#include "group_norm_storage.cuh"
#include "pooled_window.cuh"
#include "tail_gradient_sums.cuh"

namespace tconv {
namespace cuda {

// kDepth, kHeight, kWidth: of windows that are loaded at once; 0: any.
template <typename WindowOf, bool kLargestOf>
struct WindowPoolGradientConfig {
  using Window = WindowOf;
  static constexpr int kThreads = 256;
  static constexpr bool kLargest = kLargestOf;
};

template <typename S>
struct WindowPoolGradientArgs {
  const S *value, *grad;
  S* grad_value;
  float* parts;                // [operand][sample][part][channel], of the steps' operands
  int64_t cells;               // windows, and what is left out, of all planes; or of one, where there are sums
  int volume, image, columns;  // cells of a plane, of an image of it, of a row of that
  int window_d, window_h, window_w;
  int64_t in_d, in_h, in_w;
  int64_t out_d, out_h, out_w;
  FastDivisor64 by_volume;
  FastDivisor by_image, by_columns, by_channels, by_parts;
  int channels, num_parts, num_sums;  // parts: blocks of a plane
  int64_t of_one_sum;
  EpilogueArgs<S> steps;
};

// The cell's gradients, and what it adds to those of the steps' operands.
template <typename Step, typename Config, typename S>
__device__ __forceinline__ void form_cell(const WindowPoolGradientArgs<S>& a, uint32_t plane, uint32_t place,
                                          int64_t channel, float (&of_operands)[kMostSums<Step>]) {
  using Window = typename Config::Window;
  const uint32_t d = a.by_image.quotient(place), within = place - d * a.image;
  const uint32_t h = a.by_columns.quotient(within), w = within - h * a.columns;
  const Window window(a.window_d, a.window_h, a.window_w);
  const int64_t begin =
      ((plane * a.in_d + int64_t{d} * window.depth()) * a.in_h + int64_t{h} * window.height()) * a.in_w +
      int64_t{w} * window.width();
  const int64_t image = a.in_h * a.in_w;
  if (d >= a.out_d || h >= a.out_h || w >= a.out_w) {
    for (int i = 0; i < window.depth() && d * window.depth() + i < a.in_d; ++i)
      for (int j = 0; j < window.height() && h * window.height() + j < a.in_h; ++j)
        for (int k = 0; k < window.width() && w * window.width() + k < a.in_w; ++k)
          a.grad_value[begin + i * image + j * a.in_w + k] = to_storage<S>(0.0f);
    return;
  }
  int from = 0;  // the largest value's place in the window
  const float pooled = window.template pooled<Config::kLargest>(a.value + begin, image, a.in_w, from);
  const int64_t output = ((plane * a.out_d + d) * a.out_h + h) * a.out_w + w;
  const float grad =
      Step::template gradient<float, S>(pooled, norm::to_acc(a.grad[output]), a.steps, channel, of_operands);
  const S each = to_storage<S>(Config::kLargest ? grad : grad / static_cast<float>(window.count()));
  const S none = to_storage<S>(0.0f);
  window.each([&](int i, int j, int k, int at) {
    a.grad_value[begin + i * image + j * a.in_w + k] = !Config::kLargest || at == from ? each : none;
  });
}

// A thread for each cell of all planes: nobody wants sums.
template <typename Step, typename Config, typename S>
__global__ void __launch_bounds__(Config::kThreads) window_pool_gradient_kernel(WindowPoolGradientArgs<S> a) {
  const int64_t cell = int64_t{blockIdx.x} * Config::kThreads + threadIdx.x;
  if (cell >= a.cells) return;
  const auto plane = static_cast<uint32_t>(a.by_volume.quotient(cell));
  const int64_t channel = plane - a.by_channels.quotient(plane) * a.channels;
  float unread[kMostSums<Step>] = {};
  form_cell<Step, Config>(a, plane, static_cast<uint32_t>(cell - int64_t{plane} * a.volume), channel, unread);
}

// Blocks work on one plane each.
template <typename Step, typename Config, typename S>
__global__ void __launch_bounds__(Config::kThreads) window_pool_sums_kernel(WindowPoolGradientArgs<S> a) {
  __shared__ float of_warps[Config::kThreads / 32];
  const uint32_t plane = a.by_parts.quotient(blockIdx.x), part = blockIdx.x - plane * a.num_parts;
  const uint32_t sample = a.by_channels.quotient(plane), channel = plane - sample * a.channels;
  const uint32_t place = part * Config::kThreads + threadIdx.x;
  float of_operands[kMostSums<Step>] = {};
  if (place < static_cast<uint32_t>(a.volume)) form_cell<Step, Config>(a, plane, place, channel, of_operands);
  const int64_t row = int64_t{sample} * a.num_parts + part;
  for (int k = 0; k < a.num_sums; ++k) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < Step::kVectors; ++i)
      if (i == k) sum = of_operands[i];
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, distance);
    __syncthreads();  // what was there is read
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x != 0) continue;
    float all = 0;
    for (int i = 0; i < Config::kThreads / 32; ++i) all += of_warps[i];
    a.parts[k * a.of_one_sum + row * a.channels + channel] = all;
  }
}

inline int64_t window_pool_cells(const TailGradientCall& call) {
  int64_t cells = 1;
  for (int axis = 0; axis < 3; ++axis) cells *= norm::ceil_div(call.in[axis], call.window[axis]);
  return cells;
}

inline TailSums window_pool_sums(const TailGradientCall& call) {
  constexpr int kThreads = WindowPoolGradientConfig<Window<0, 0, 0>, false>::kThreads;
  return {call.batch * norm::ceil_div(window_pool_cells(call), kThreads), call.channels};
}

inline int64_t window_pool_gradient_workspace_bytes(const TailGradientCall& call) {
  return window_pool_sums(call).bytes(call);
}

// kUnsupportedKernel where planes, values of one, or blocks need 64-bit numbers.
template <typename Step, bool kLargest, typename S>
int64_t launch_window_pool_gradient(const TailGradientCall& call) {
  const int64_t planes = call.batch * call.channels, volume = window_pool_cells(call);
  const TailSums sums = window_pool_sums(call);
  if (planes > INT32_MAX || call.plane > INT32_MAX || sums.of_one() > INT32_MAX)
    return unsupported_tail(call, "2^31 planes, values of one, or blocks, or more");
  WindowPoolGradientArgs<S> args{};
  args.value = static_cast<const S*>(call.value), args.grad = static_cast<const S*>(call.grad);
  args.grad_value = static_cast<S*>(call.grad_value);
  args.parts = TailSums::parts(call);
  args.columns = static_cast<int>(norm::ceil_div(call.in[2], call.window[2]));
  args.image = static_cast<int>(norm::ceil_div(call.in[1], call.window[1])) * args.columns;
  args.volume = static_cast<int>(volume), args.cells = planes * volume;
  args.window_d = static_cast<int>(call.window[0]), args.window_h = static_cast<int>(call.window[1]);
  args.window_w = static_cast<int>(call.window[2]);
  args.in_d = call.in[0], args.in_h = call.in[1], args.in_w = call.in[2];
  args.out_d = call.out[0], args.out_h = call.out[1], args.out_w = call.out[2];
  args.by_volume = FastDivisor64::make(static_cast<uint64_t>(volume));
  args.by_image = FastDivisor::make(static_cast<uint32_t>(args.image));
  args.by_columns = FastDivisor::make(static_cast<uint32_t>(args.columns));
  args.by_channels = FastDivisor::make(static_cast<uint32_t>(call.channels));
  args.channels = static_cast<int>(call.channels);
  args.num_parts = static_cast<int>(sums.rows / call.batch);
  args.by_parts = FastDivisor::make(static_cast<uint32_t>(args.num_parts));
  args.num_sums = call.num_sums(), args.of_one_sum = sums.of_one();
  args.steps = make_epilogue_args<S>(call.conv);
  return with_window(call, [&](auto window) -> int64_t {
    using Config = WindowPoolGradientConfig<decltype(window), kLargest>;
    const auto stream = static_cast<cudaStream_t>(call.conv.stream);
    if (call.wanted == 0)
      return norm::launch(window_pool_gradient_kernel<Step, Config, S>, norm::ceil_div(args.cells, Config::kThreads),
                          Config::kThreads, stream, args);
    TCONV_RETURN_IF_ERROR(
        norm::launch(window_pool_sums_kernel<Step, Config, S>, sums.of_one(), Config::kThreads, stream, args));
    return sums.template add_up<S>(call);
  });
}

}  // namespace cuda
}  // namespace tconv
