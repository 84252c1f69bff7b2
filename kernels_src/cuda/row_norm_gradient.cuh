// Gradients of LayerNorm over rows of contiguous values and of a tail's steps behind it. With n = (value - mean) * rstd
// over a row and d the gradient ahead of the steps, that of n * weight + bias,
//
//   grad_weight = sum(d * n),   grad_bias = sum(d),   over rows
//   grad_value = rstd * (h - mean(h) - n * mean(h * n)),   h = d * weight
//
// (aten/src/ATen/native/cuda/layer_norm_kernel.cu in PyTorch). Lanes hold a row as in row_norm.cuh, and their columns'
// sums over the rows that they work on. Bound by memory: two reads and one write.
#pragma once

#include "device_limits.h"
#include "fast_divisor.h"
#include "row_parameter.cuh"
#include "row_widths.h"
#include "tail_gradient_sums.cuh"

namespace tconv {
namespace cuda {

// kVector: values that a lane loads at once; kHeld: such vectors of a row that it holds.
template <typename S, int kVectorOf, int kHeldOf>
struct RowNormGradientConfig {
  static constexpr int kThreads = 128;
  static constexpr int kWarps = kThreads / norm::kWarp;
  static constexpr int kVector = kVectorOf, kHeld = kHeldOf, kValues = kVector * kHeld;
  static constexpr int kMostOfRow = norm::kWarp * kValues;
  static constexpr int kRows = kValues < 4 ? 4 / kValues : 1;    // at once, for loads in flight
  static constexpr int kFewestResident = kValues >= 16 ? 2 : 4;  // blocks
  static constexpr int kBlocksPerProcessor = 8;                  // each leaves a part of the sums
  using Values = RowValues<S, kVector>;
};

template <typename S>
struct RowNormGradientArgs {
  const S *value, *grad;
  S* grad_value;
  const S* weight;  // [row] or null
  const S* bias;    // likewise
  float* parts;     // [2][blocks][row], of weight and bias
  bool affine_in_vectors, sums_weight, sums_bias;
  uint32_t rows;       // less than 2^31
  int row, lane_bits;  // 2^lane_bits lanes of a row
  float one_over_row, eps;
  FastDivisor by_rows_of_channel, by_channels;
  EpilogueArgs<S> steps;
};

// Over the lanes of a row; the same in each of them.
__device__ __forceinline__ float over_lanes(float value, int lanes) {
  for (int distance = lanes / 2; distance > 0; distance /= 2)
    value += __shfl_xor_sync(norm::kAllLanes, value, distance);
  return value;
}

// What a block's lanes have of each column, added in a fixed order.
template <typename Config>
__device__ __forceinline__ void leave_columns(const float (&of_lane)[Config::kHeld][Config::kVector], float* parts,
                                              int row, int lanes) {
  __shared__ float of_warps[Config::kWarps][Config::kMostOfRow];
  const int lane = threadIdx.x % norm::kWarp, warp = threadIdx.x / norm::kWarp;
  __syncthreads();  // what was there is read
#pragma unroll
  for (int i = 0; i < Config::kHeld; ++i)
#pragma unroll
    for (int j = 0; j < Config::kVector; ++j) {
      float sum = of_lane[i][j];
      for (int distance = lanes; distance < norm::kWarp; distance *= 2)
        sum += __shfl_xor_sync(norm::kAllLanes, sum, distance);
      const int at = (i * lanes + lane) * Config::kVector + j;
      if (lane < lanes && at < row) of_warps[warp][at] = sum;
    }
  __syncthreads();
  for (int at = threadIdx.x; at < row; at += Config::kThreads) {
    float sum = 0;
    for (int i = 0; i < Config::kWarps; ++i) sum += of_warps[i][at];
    parts[int64_t{blockIdx.x} * row + at] = sum;
  }
}

template <typename Step, typename Config, typename S>
__global__ void __launch_bounds__(Config::kThreads, Config::kFewestResident)
    row_norm_gradient_kernel(RowNormGradientArgs<S> a) {
  constexpr int kVector = Config::kVector, kHeld = Config::kHeld, kRows = Config::kRows;
  using Values = typename Config::Values;
  const int lane = threadIdx.x % norm::kWarp, lanes = 1 << a.lane_bits;
  const int begin = (lane & (lanes - 1)) * kVector, pitch = lanes * kVector;
  const uint32_t group = lane >> a.lane_bits, abreast = norm::kWarp >> a.lane_bits;
  Values weight[kHeld], bias[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    weight[i] = row_parameter<Values>(a.weight, begin + i * pitch, a.row, a.affine_in_vectors, 1.0f);
    bias[i] = row_parameter<Values>(a.bias, begin + i * pitch, a.row, a.affine_in_vectors, 0.0f);
  }
  float of_weight[kHeld][kVector] = {}, of_bias[kHeld][kVector] = {};
  const uint32_t warp = blockIdx.x * Config::kWarps + threadIdx.x / norm::kWarp;
  const uint32_t step = gridDim.x * Config::kWarps * abreast * kRows;
  // The same number of times on every lane of a warp: rows beyond the end are zeros that count nowhere.
  for (uint32_t first = warp * abreast * kRows; first < a.rows; first += step) {
    Values value[kRows][kHeld], grad[kRows][kHeld];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const uint32_t row_idx = first + r * abreast + group;
      const int64_t place = int64_t{row_idx} * a.row;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        const int at = begin + i * pitch;
        value[r][i] = Values{}, grad[r][i] = Values{};
        if (row_idx < a.rows && at < a.row) {
          value[r][i] = load_row_values<Values>(a.value + place + at);
          grad[r][i] = load_row_values<Values>(a.grad + place + at);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const uint32_t row_idx = first + r * abreast + group;
      const bool present = row_idx < a.rows;
      const uint32_t plane = a.by_rows_of_channel.quotient(present ? row_idx : a.rows - 1);
      const int64_t channel = plane - a.by_channels.quotient(plane) * a.by_channels.divisor;
      // Around the row's first value: where the mean is large, an error of it would stand in every difference, and a
      // sum of the gradients, which is 0, would have it.
      const float around = __shfl_sync(norm::kAllLanes, norm::to_acc(value[r][0].values[0]), lane & ~(lanes - 1));
      float normed[kHeld][kVector], mean = 0, square = 0;
#pragma unroll
      for (int i = 0; i < kHeld; ++i)
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          normed[i][j] = norm::to_acc(value[r][i].values[j]) - around;
          if (begin + i * pitch < a.row) mean += normed[i][j];
        }
      mean = over_lanes(mean, lanes) * a.one_over_row;
#pragma unroll
      for (int i = 0; i < kHeld; ++i)
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          normed[i][j] -= mean;
          if (begin + i * pitch < a.row) square += normed[i][j] * normed[i][j];
        }
      const float rstd = rsqrtf(over_lanes(square, lanes) * a.one_over_row + a.eps);
      float scaled[kHeld][kVector], sum = 0, product = 0;
#pragma unroll
      for (int i = 0; i < kHeld; ++i)
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          normed[i][j] *= rstd;
          const float by = norm::to_acc(weight[i].values[j]);
          const float y = normed[i][j] * by + norm::to_acc(bias[i].values[j]);
          float unread[kMostSums<Step>] = {};
          const float d =
              Step::template gradient<float, S>(y, norm::to_acc(grad[r][i].values[j]), a.steps, channel, unread);
          scaled[i][j] = d * by;
          if (present && begin + i * pitch < a.row) {
            of_weight[i][j] += d * normed[i][j], of_bias[i][j] += d;
            sum += scaled[i][j], product += scaled[i][j] * normed[i][j];
          }
        }
      sum = over_lanes(sum, lanes) * a.one_over_row, product = over_lanes(product, lanes) * a.one_over_row;
#pragma unroll
      for (int i = 0; i < kHeld; ++i)
#pragma unroll
        for (int j = 0; j < kVector; ++j)
          value[r][i].values[j] = to_storage<S>(rstd * (scaled[i][j] - sum - normed[i][j] * product));
      S* const to = a.grad_value + int64_t{row_idx} * a.row;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        const int at = begin + i * pitch;
        if (present && at < a.row) *reinterpret_cast<Values*>(to + at) = value[r][i];
      }
    }
  }
  if (a.sums_weight) leave_columns<Config>(of_weight, a.parts, a.row, lanes);
  if (a.sums_bias) leave_columns<Config>(of_bias, a.parts + int64_t{gridDim.x} * a.row, a.row, lanes);
}

// take(the kernel's Config, its RowBlocks): for a row of the call.
template <typename S, typename Take>
int64_t with_row_norm_gradient(const TailGradientCall& call, const Take& take) {
  const auto past = [](const void* at) { return norm::elements_past_boundary(static_cast<const S*>(at)); };
  const bool aligned = past(call.value) == 0 && past(call.grad) == 0 && past(call.grad_value) == 0;
  DeviceLimits device;
  TCONV_RETURN_IF_ERROR(query_device_limits(&device));
  return with_row_widths<S>(call, aligned, [&](auto vector, auto held) -> int64_t {
    using Config = RowNormGradientConfig<S, decltype(vector)::value, decltype(held)::value>;
    return take(Config{}, RowBlocks<Config>(call, device.sm_count));
  });
}

template <typename S>
int64_t row_norm_gradient_workspace_bytes(const TailGradientCall& call) {
  return with_row_norm_gradient<S>(call,
                                   [&](auto, const auto& of) { return TailSums{of.blocks, call.row}.bytes(call); });
}

template <typename Step, typename S>
int64_t launch_row_norm_gradient(const TailGradientCall& call) {
  RowNormGradientArgs<S> args{};
  args.value = static_cast<const S*>(call.value), args.grad = static_cast<const S*>(call.grad);
  args.grad_value = static_cast<S*>(call.grad_value);
  args.weight = static_cast<const S*>(call.weight), args.bias = static_cast<const S*>(call.bias);
  args.affine_in_vectors =
      norm::elements_past_boundary(args.weight) == 0 && norm::elements_past_boundary(args.bias) == 0;
  args.parts = TailSums::parts(call);
  args.sums_weight = call.wants(0), args.sums_bias = call.wants(1);
  args.rows = static_cast<uint32_t>(call.batch * call.channels * (call.plane / call.row));
  args.row = static_cast<int>(call.row);
  args.one_over_row = 1.0f / static_cast<float>(call.row), args.eps = static_cast<float>(call.eps);
  args.by_rows_of_channel = FastDivisor::make(static_cast<uint32_t>(call.plane / call.row));
  args.by_channels = FastDivisor::make(static_cast<uint32_t>(call.channels));
  args.steps = make_epilogue_args<S>(call.conv);
  return with_row_norm_gradient<S>(call, [&](auto config, const auto& of) -> int64_t {
    using Config = decltype(config);
    args.lane_bits = of.lane_bits;
    TCONV_RETURN_IF_ERROR(norm::launch(row_norm_gradient_kernel<Step, Config, S>, of.blocks, Config::kThreads,
                                       static_cast<cudaStream_t>(call.conv.stream), args));
    return TailSums{of.blocks, call.row}.template add_up<S>(call);
  });
}

}  // namespace cuda
}  // namespace tconv
