// Last of the kernels of GroupNorm's gradients: the gradient of what was normalised. Bound by memory.
#pragma once

#include "group_norm_gradient_args.cuh"

namespace tconv {
namespace cuda {

template <int kLanes, typename Storage>
__global__ void __launch_bounds__(GroupNormGradientConfig::kThreads)
    group_norm_gradient_apply_kernel(const __grid_constant__ GroupNormGradientArgs<Storage> args) {
  using Config = GroupNormGradientConfig;
  using Acc = typename StorageTraits<Storage>::Acc;
  constexpr int kUnits = Config::kThreads / kLanes;
  constexpr int kChunk = Config::chunk(sizeof(Storage)), kVectors = kChunk / Config::kVector;
  const int lane = threadIdx.x % kLanes;
  for (int64_t unit = static_cast<int64_t>(blockIdx.x) * kUnits + threadIdx.x / kLanes; unit < args.num_units;
       unit += static_cast<int64_t>(gridDim.x) * kUnits) {
    const PlanePart<Storage> part(args, unit);
    const int64_t sample = args.by_channels.quotient(part.plane), channel = part.plane - sample * args.channels;
    const GroupCoefficients<Acc> of_group =
        args.coefficients[sample * args.num_groups + args.by_group_channels.quotient(channel)];
    const Acc scale = of_group.rstd * (args.weight != nullptr ? static_cast<Acc>(args.weight[channel]) : Acc(1));
    const auto gradient = [&](Storage value, Storage grad) {
      return to_storage<Storage>(scale * static_cast<Acc>(grad) +
                                 (of_group.slope * (static_cast<Acc>(value) - of_group.mean) + of_group.shift));
    };
    const Storage* const value = args.value + part.begin;
    const Storage* const grad = args.grad + part.begin;
    Storage* const to = args.grad_value + part.begin;
    for (int first = 0; first < part.count; first += kLanes * kChunk) {
      if (args.vectors) {
        NormVector<Storage> v[kVectors], g[kVectors];
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
          const int at = first + (i * kLanes + lane) * Config::kVector;
          if (at >= part.count) continue;
          v[i] = *reinterpret_cast<const NormVector<Storage>*>(value + at);
          g[i] = *reinterpret_cast<const NormVector<Storage>*>(grad + at);
        }
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
          const int at = first + (i * kLanes + lane) * Config::kVector;
          if (at >= part.count) continue;
#pragma unroll
          for (int k = 0; k < Config::kVector; ++k) v[i].values[k] = gradient(v[i].values[k], g[i].values[k]);
          *reinterpret_cast<NormVector<Storage>*>(to + at) = v[i];
        }
      } else {
#pragma unroll
        for (int i = 0; i < kChunk; ++i) {
          const int at = first + i * kLanes + lane;
          if (at < part.count) to[at] = gradient(value[at], grad[at]);
        }
      }
    }
  }
}

}  // namespace cuda
}  // namespace tconv
