// First of the kernels of GroupNorm's gradients: GradientMoments of each part of a plane. kLanes threads share a part:
// a warp, or a block. Bound by reading value and g.
#pragma once

#include "group_norm_gradient_args.cuh"

namespace tconv {
namespace cuda {

// Of a thread's values; those that are not there(index) are zero.
template <typename Acc, int kChunk, typename There>
__device__ __forceinline__ GradientMoments<Acc> moments_of_chunk(const Acc (&values)[kChunk],
                                                                 const Acc (&grads)[kChunk], const There& there) {
  GradientMoments<Acc> made{};
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    made.count += there(i) ? Acc(1) : Acc(0);
    made.mean += values[i];
  }
  made.mean /= made.count > Acc(0) ? made.count : Acc(1);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    const Acc deviation = there(i) ? values[i] - made.mean : Acc(0);
    made.m2 += deviation * deviation;
    made.grad += grads[i];
    made.product += grads[i] * deviation;
  }
  return made;
}

// Lane 0's are all lanes', joined in a fixed order.
template <typename Acc>
__device__ __forceinline__ void join_lanes(GradientMoments<Acc>& moments) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    GradientMoments<Acc> other;
    other.count = __shfl_xor_sync(0xFFFFFFFFu, moments.count, distance);
    other.mean = __shfl_xor_sync(0xFFFFFFFFu, moments.mean, distance);
    other.m2 = __shfl_xor_sync(0xFFFFFFFFu, moments.m2, distance);
    other.grad = __shfl_xor_sync(0xFFFFFFFFu, moments.grad, distance);
    other.product = __shfl_xor_sync(0xFFFFFFFFu, moments.product, distance);
    moments.join(other);
  }
}

template <int kLanes, typename Args>
__global__ void __launch_bounds__(GroupNormGradientConfig::kThreads, GroupNormGradientConfig::kMinBlocks)
    group_norm_gradient_sums_kernel(const __grid_constant__ Args args) {
  using Config = GroupNormGradientConfig;
  using Storage = typename Args::Storage;
  using Acc = typename Args::Acc;
  constexpr int kUnits = Config::kThreads / kLanes;
  constexpr int kChunk = Config::chunk(sizeof(Storage)), kVectors = kChunk / Config::kVector;
  __shared__ GradientMoments<Acc> of_warps[Config::kThreads / 32];
#ifdef TCONV_GRADIENT_CHAINS
  await_previous_kernels();
#endif
  const int lane = threadIdx.x % kLanes;
#ifdef TCONV_GRADIENT_CHAINS
  // From the last unit on: what has just been written is still in L2, and so are the first ones for who comes next.
  for (int64_t left = args.num_units - static_cast<int64_t>(blockIdx.x) * kUnits - threadIdx.x / kLanes; left > 0;
       left -= static_cast<int64_t>(gridDim.x) * kUnits) {
    const int64_t unit = left - 1;
#else
  for (int64_t unit = static_cast<int64_t>(blockIdx.x) * kUnits + threadIdx.x / kLanes; unit < args.num_units;
       unit += static_cast<int64_t>(gridDim.x) * kUnits) {
#endif
    const PlanePart part(args, unit);
    const auto inner = args.inner.of_channel(part.channel);
    const Storage* const value = args.value + part.begin;
    const Storage* const grad = args.grad + part.begin;
    const Acc origin = plane_origin(args, part.plane, part.channel);
#ifdef TCONV_NORM_TAILS
    // g is that of steps behind the norm: (value, g) of a plane -> that of the norm's result.
    const auto behind = args.inner.behind(part.plane, part.channel);
#endif
    GradientMoments<Acc> moments{};
    const VectorSpan span(part, args.vectors);
    for (int first = -span.shift; first < part.count; first += kLanes * kChunk) {
      Acc values[kChunk], grads[kChunk];
      if (args.vectors && span.has(first, kLanes * kChunk)) {
        StorageVector<Storage> v[kVectors], g[kVectors];
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
          const int at = first + (i * kLanes + lane) * Config::kVector;
          v[i] = *reinterpret_cast<const StorageVector<Storage>*>(value + at);
          g[i] = *reinterpret_cast<const StorageVector<Storage>*>(grad + at);
        }
#pragma unroll
        for (int i = 0; i < kChunk; ++i) {
          const int k = i % Config::kVector;
          values[i] = inner.template value<Storage>(static_cast<Acc>(v[i / Config::kVector].values[k])) - origin;
#ifdef TCONV_NORM_TAILS
          grads[i] = behind(v[i / Config::kVector].values[k], g[i / Config::kVector].values[k]);
#else
          grads[i] = static_cast<Acc>(g[i / Config::kVector].values[k]);
#endif
        }
        moments.join(moments_of_chunk(values, grads, [](int) { return true; }));
        continue;
      }
      bool there[kChunk];
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        const int at = first + i * kLanes + lane;
        there[i] = span.has(at);
        values[i] = there[i] ? inner.template value<Storage>(static_cast<Acc>(value[at])) - origin : Acc(0);
#ifdef TCONV_NORM_TAILS
        grads[i] = there[i] ? behind(value[at], grad[at]) : Acc(0);
#else
        grads[i] = there[i] ? static_cast<Acc>(grad[at]) : Acc(0);
#endif
      }
      moments.join(moments_of_chunk(values, grads, [&](int i) { return there[i]; }));
    }
    join_lanes(moments);
    if constexpr (kLanes > 32) {
      __syncthreads();  // those of the unit before have been read
      if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = moments;
      __syncthreads();
      if (threadIdx.x == 0)
        for (int warp = 1; warp < Config::kThreads / 32; ++warp) moments.join(of_warps[warp]);
    }
    if (lane == 0) args.parts[unit] = moments;
  }
}

}  // namespace cuda
}  // namespace tconv
