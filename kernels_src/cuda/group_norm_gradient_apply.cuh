// Last of the kernels of GroupNorm's gradients: the gradient of the stored value, and its sums per part of a plane.
// Bound by memory.
#pragma once

#include "group_norm_gradient_args.cuh"
#include "group_norm_moments.cuh"

namespace tconv {
namespace cuda {

// Of all lanes that share a part, in a fixed order; lane 0's is right. `of_warps` must not be in use.
template <int kLanes, typename Acc>
__device__ __forceinline__ Acc sum_of_part(Acc sum, Acc* of_warps) {
  sum = norm::warp_sum(sum);
  if constexpr (kLanes > 32) {
    __syncthreads();  // those of the unit before have been read
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0)
      for (int warp = 1; warp < kLanes / 32; ++warp) sum += of_warps[warp];
  }
  return sum;
}

template <int kLanes, typename Args>
__global__ void __launch_bounds__(GroupNormGradientConfig::kThreads, GroupNormGradientConfig::kMinBlocks)
    group_norm_gradient_apply_kernel(const __grid_constant__ Args args) {
  using Config = GroupNormGradientConfig;
  using Storage = typename Args::Storage;
  using Acc = typename Args::Acc;
  constexpr int kUnits = Config::kThreads / kLanes;
  constexpr int kChunk = Config::chunk(sizeof(Storage)), kVectors = kChunk / Config::kVector;
  constexpr int kSums = 1 + Args::Inner::kSums;
  constexpr int kAtOnce = sizeof(Storage) < 8 ? kChunk : 1;  // fp64 has no registers for more of some chains
#ifdef TCONV_WIDE_SUMS
  // Chains of volumes: a channel has millions of values, and the sum of what comes from a norm behind them is 0.
  using Sum = double;
  __shared__ Sum of_warps[kSums][Config::kThreads / 32];
#else
  __shared__ Acc of_warps[kSums][Config::kThreads / 32];
#endif
#ifdef TCONV_GRADIENT_CHAINS
  await_previous_kernels();
  if (!args.wanted()) return;
#endif
  const int lane = threadIdx.x % kLanes;
  for (int64_t unit = static_cast<int64_t>(blockIdx.x) * kUnits + threadIdx.x / kLanes; unit < args.num_units;
       unit += static_cast<int64_t>(gridDim.x) * kUnits) {
    const PlanePart part(args, unit);
    const bool normed = args.num_groups > 0;
    GroupCoefficients<Acc> of_group{Acc(0), Acc(1), Acc(0), Acc(0)};
    if (normed)
      of_group = args.coefficients[part.sample * args.num_groups + args.by_group_channels.quotient(part.channel)];
    const Acc scale = of_group.rstd * (args.weight != nullptr ? static_cast<Acc>(args.weight[part.channel]) : Acc(1));
    const auto inner = args.inner.of_channel(part.channel);
#ifdef TCONV_NORM_TAILS
    const auto behind = args.inner.behind(part.plane, part.channel);
#endif
#ifdef TCONV_WIDE_SUMS
    Sum sums[kSums] = {};
#else
    Acc sums[kSums] = {};
#endif
#ifdef TCONV_READS_MASK
    using Value = typename Args::Value;
    const auto gradient = [&](Value value, Storage grad) {
#else
    const auto gradient = [&](Storage value, Storage grad) {
#endif
      const Acc v = static_cast<Acc>(value);
      const auto outer = [&](Acc inner_value) {
#ifdef TCONV_NORM_TAILS
        const Acc scaled = scale * behind(value, grad);
#else
        const Acc scaled = scale * static_cast<Acc>(grad);
#endif
        return normed ? scaled + (of_group.slope * (inner_value - of_group.mean) + of_group.shift) : scaled;
      };
#ifdef TCONV_WIDE_SUMS
      Acc of_value[kSums] = {};
      const Acc result = of_value[0] = inner.template gradient<Storage>(v, outer, of_value + 1);
#pragma unroll
      for (int i = 0; i < kSums; ++i) sums[i] += of_value[i];
#else
      const Acc result = inner.template gradient<Storage>(v, outer, sums + 1);
      sums[0] += result;
#endif
      return to_storage<Storage>(result);
    };
#ifdef TCONV_READS_MASK
    const Value* const value = args.value + part.begin;
#else
    const Storage* const value = args.value + part.begin;
#endif
    const Storage* const grad = args.grad + part.begin;
    const bool vectors = sizeof(Storage) < 8 && args.vectors;
    const VectorSpan span(part, vectors);
    const RowWriter<Storage> to(args.grad_value, args.rows, part.plane, part.part * Config::kPart);
    for (int first = -span.shift; first < part.count; first += kLanes * kChunk) {
      if (vectors && span.has(first, kLanes * kChunk)) {
        StorageVector<Storage> v[kVectors], g[kVectors];
#ifdef TCONV_READS_MASK
        StorageVector<Value> of[kVectors];
#endif
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
          const int at = first + (i * kLanes + lane) * Config::kVector;
#ifdef TCONV_READS_MASK
          of[i] = *reinterpret_cast<const StorageVector<Value>*>(value + at);
#else
          v[i] = *reinterpret_cast<const StorageVector<Storage>*>(value + at);
#endif
          g[i] = *reinterpret_cast<const StorageVector<Storage>*>(grad + at);
        }
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
#pragma unroll
#ifdef TCONV_READS_MASK
          for (int k = 0; k < Config::kVector; ++k) v[i].values[k] = gradient(of[i].values[k], g[i].values[k]);
#else
          for (int k = 0; k < Config::kVector; ++k) v[i].values[k] = gradient(v[i].values[k], g[i].values[k]);
#endif
          to.store(first + (i * kLanes + lane) * Config::kVector, v[i]);
        }
      } else {
#pragma unroll kAtOnce
        for (int i = 0; i < kChunk; ++i) {
          const int at = first + i * kLanes + lane;
          if (span.has(at)) to.store(at, gradient(value[at], grad[at]));
        }
      }
    }
    const int64_t place = (part.sample * args.parts_per_plane + part.part) * args.channels + part.channel;
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      if (args.sum_parts[i] == nullptr) continue;
      const Acc sum = sum_of_part<kLanes>(sums[i], of_warps[i]);
      if (lane == 0) args.sum_parts[i][place] = sum;
    }
  }
}

}  // namespace cuda
}  // namespace tconv
