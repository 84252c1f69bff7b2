// LayerNorm of rows of contiguous values, with a tail's steps behind it: one read and one write. Bound by memory. The
// lanes of a row, a power of two, hold it in registers, so that mean and variance take no second read. Rows shorter
// than a warp's registers: a lane works on several at once, for as many loads in flight.
#pragma once

#include "../tail_call.h"
#include "../epilogue.h"
#include "../generated_tail.h"
#include "device_limits.h"
#include "fast_divisor.h"
#include "row_parameter.cuh"
#include "row_widths.h"

namespace tconv {
namespace cuda {

// kVector: values that a lane loads at once; kHeld: such vectors of a row that it holds.
template <typename S, int kVectorOf, int kHeldOf>
struct RowNormConfig {
  static constexpr int kThreads = 128;
  static constexpr int kWarps = kThreads / norm::kWarp;
  static constexpr int kVector = kVectorOf, kHeld = kHeldOf;
  static constexpr int kInFlight = kVector == 1 ? 8 : 4;  // loads of a lane
  static constexpr int kRows = kHeld < kInFlight ? kInFlight / kHeld : 1;
  // Blocks: registers hold the values that a lane works on, in fp32, and its parts of weight and bias.
  static constexpr int kFewestResident = kHeld * kVector >= 16 || kRows * kHeld * kVector > 16 ? 3 : 6;
  static constexpr int kBlocksPerProcessor = 32;  // more than run at once: their ends come at different times

  using Values = RowValues<S, kVector>;
};

template <typename S>
struct RowNormArgs {
  const S* value;
  S* result;
  const S* weight;  // [row] or null
  const S* bias;    // likewise
  bool affine_in_vectors;
  uint32_t rows;       // less than 2^31
  int row, lane_bits;  // 2^lane_bits lanes of a row
  float one_over_row, eps;
  FastDivisor by_rows_of_channel, by_channels;
  EpilogueArgs<S> steps;
};

template <typename Step, typename Config, typename S>
__global__ void __launch_bounds__(Config::kThreads, Config::kFewestResident) row_norm_kernel(RowNormArgs<S> a) {
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
  const uint32_t warp = blockIdx.x * Config::kWarps + threadIdx.x / norm::kWarp;
  const uint32_t step = gridDim.x * Config::kWarps * abreast * kRows;
  // The same number of times on every lane of a warp: rows beyond the end are zeros that nobody stores.
  for (uint32_t first = warp * abreast * kRows; first < a.rows; first += step) {
    Values loaded[kRows][kHeld];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const uint32_t row_idx = first + r * abreast + group;
      const S* const from = a.value + int64_t{row_idx} * a.row;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        const int at = begin + i * pitch;
        loaded[r][i] = Values{};
        if (row_idx < a.rows && at < a.row) loaded[r][i] = load_row_values<Values>(from + at);
      }
    }
    float held[kRows][kHeld][kVector], mean[kRows], square[kRows];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      mean[r] = 0;
#pragma unroll
      for (int i = 0; i < kHeld; ++i)
#pragma unroll
        for (int j = 0; j < kVector; ++j) mean[r] += held[r][i][j] = norm::to_acc(loaded[r][i].values[j]);
    }
    for (int distance = lanes / 2; distance > 0; distance /= 2)
#pragma unroll
      for (int r = 0; r < kRows; ++r) mean[r] += __shfl_xor_sync(norm::kAllLanes, mean[r], distance);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      mean[r] *= a.one_over_row;
      square[r] = 0;
#pragma unroll
      for (int i = 0; i < kHeld; ++i)
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          held[r][i][j] -= mean[r];
          if (begin + i * pitch < a.row) square[r] += held[r][i][j] * held[r][i][j];
        }
    }
    for (int distance = lanes / 2; distance > 0; distance /= 2)
#pragma unroll
      for (int r = 0; r < kRows; ++r) square[r] += __shfl_xor_sync(norm::kAllLanes, square[r], distance);
    // All of them before the first store, behind which the steps' operands would wait for it.
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const uint32_t row_idx = min(first + r * abreast + group, a.rows - 1);
      const float rstd = rsqrtf(square[r] * a.one_over_row + a.eps);
      const uint32_t plane = a.by_rows_of_channel.quotient(row_idx);
      const int64_t channel = plane - a.by_channels.quotient(plane) * a.by_channels.divisor;
#pragma unroll
      for (int i = 0; i < kHeld; ++i)
#pragma unroll
        for (int j = 0; j < kVector; ++j) {
          const float scale = rstd * norm::to_acc(weight[i].values[j]);
          const float y = held[r][i][j] * scale + norm::to_acc(bias[i].values[j]);
          loaded[r][i].values[j] = to_storage<S>(Step::template apply<float, S>(y, a.steps, channel));
        }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const uint32_t row_idx = first + r * abreast + group;
      S* const to = a.result + int64_t{row_idx} * a.row;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        const int at = begin + i * pitch;
        if (row_idx < a.rows && at < a.row) *reinterpret_cast<Values*>(to + at) = loaded[r][i];
      }
    }
  }
}

// kUnsupportedKernel where row_norm_fits says no, and for 2^31 rows or more.
template <typename Step, typename S>
int64_t launch_row_norm(const TailCall& call) {
  const auto past = [](const void* at) { return norm::elements_past_boundary(static_cast<const S*>(at)); };
  const bool aligned = past(call.value) == 0 && past(call.result) == 0;
  DeviceLimits device;
  TCONV_RETURN_IF_ERROR(query_device_limits(&device));
  return with_row_widths<S>(call, aligned, [&](auto vector, auto held) -> int64_t {
    using Config = RowNormConfig<S, decltype(vector)::value, decltype(held)::value>;
    const RowBlocks<Config> of(call, device.sm_count);
    RowNormArgs<S> args{};
    args.value = static_cast<const S*>(call.value), args.result = static_cast<S*>(call.result);
    args.weight = static_cast<const S*>(call.weight), args.bias = static_cast<const S*>(call.bias);
    args.affine_in_vectors = past(call.weight) == 0 && past(call.bias) == 0;
    args.rows = static_cast<uint32_t>(call.batch * call.channels * (call.plane / call.row));
    args.row = static_cast<int>(call.row);
    args.one_over_row = 1.0f / static_cast<float>(call.row), args.eps = static_cast<float>(call.eps);
    args.by_rows_of_channel = FastDivisor::make(static_cast<uint32_t>(call.plane / call.row));
    args.by_channels = FastDivisor::make(static_cast<uint32_t>(call.channels));
    args.steps = make_epilogue_args<S>(call.conv);
    args.lane_bits = of.lane_bits;
    return norm::launch(row_norm_kernel<Step, Config, S>, of.blocks, Config::kThreads,
                        static_cast<cudaStream_t>(call.conv.stream), args);
  });
}

}  // namespace cuda
}  // namespace tconv
