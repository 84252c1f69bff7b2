// Gradients through a chain that reads tensors of the value's shape: the value's, those of the tensors, and the sums of
// what has one value a channel, all in one pass. Bound by memory.
#pragma once

#include "group_norm_gradient_apply.cuh"

namespace tconv {
namespace cuda {

// A chain's tensor operands at kCount places side by side; then their gradients.
template <typename Args, int kCount>
struct ChainTensors {
  using Inner = typename Args::Inner;
  using Storage = typename Args::Storage;
  using Many = StorageVector<Storage, kCount>;
  alignas(Many) Storage values[kMaxChannelVectors][kCount];

  __device__ __forceinline__ void load(const Inner& inner, int64_t at) {
#pragma unroll
    for (int i = 0; i < kMaxChannelVectors; ++i)
      if (Inner::reads(i) && inner.channel_vectors[i] != nullptr)
        *reinterpret_cast<Many*>(values[i]) = *reinterpret_cast<const Many*>(inner.channel_vectors[i] + at);
  }
  __device__ __forceinline__ void store(const Inner& inner, int64_t at) const {
#pragma unroll
    for (int i = 0; i < kMaxChannelVectors; ++i)
      if (Inner::reads(i) && inner.grad_tensors[i] != nullptr)
        *reinterpret_cast<Many*>(inner.grad_tensors[i] + at) = *reinterpret_cast<const Many*>(values[i]);
  }
};

template <int kLanes, typename Args>
__global__ void __launch_bounds__(GroupNormGradientConfig::kThreads, GroupNormGradientConfig::kMinBlocks)
    chain_tensors_kernel(const __grid_constant__ Args args) {
  using Config = GroupNormGradientConfig;
  using Storage = typename Args::Storage;
  using Acc = typename Args::Acc;
  constexpr int kUnits = Config::kThreads / kLanes;
  constexpr int kChunk = Config::chunk(sizeof(Storage)), kVectors = kChunk / Config::kVector;
  constexpr int kSums = 1 + Args::Inner::kSums;
  __shared__ Acc of_warps[kSums][Config::kThreads / 32];
  const int lane = threadIdx.x % kLanes;
  for (int64_t unit = static_cast<int64_t>(blockIdx.x) * kUnits + threadIdx.x / kLanes; unit < args.num_units;
       unit += static_cast<int64_t>(gridDim.x) * kUnits) {
    const PlanePart part(args, unit);
    const auto inner = args.inner.of_channel(part.channel);
    Acc sums[kSums] = {};
    const auto gradient = [&](Storage value, Storage grad, auto& tensors, int k) {
      const auto outer = [&](Acc) { return static_cast<Acc>(grad); };
      const Acc result = inner.template gradient<Storage>(static_cast<Acc>(value), outer, sums + 1, tensors.values, k);
      sums[0] += result;
      return to_storage<Storage>(result);
    };
    const Storage* const value = args.value + part.begin;
    const Storage* const grad = args.grad + part.begin;
    const bool vectors = sizeof(Storage) < 8 && args.vectors;
    const VectorSpan span(part, vectors);
    const RowWriter<Storage> to(args.grad_value, args.rows, part.plane, part.part * Config::kPart);
    for (int first = -span.shift; first < part.count; first += kLanes * kChunk) {
      if (vectors && span.has(first, kLanes * kChunk)) {
        StorageVector<Storage> v[kVectors], g[kVectors];
        ChainTensors<Args, Config::kVector> tensors[kVectors];
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
          const int at = first + (i * kLanes + lane) * Config::kVector;
          v[i] = *reinterpret_cast<const StorageVector<Storage>*>(value + at);
          g[i] = *reinterpret_cast<const StorageVector<Storage>*>(grad + at);
          tensors[i].load(args.inner, part.begin + at);
        }
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
          const int at = first + (i * kLanes + lane) * Config::kVector;
#pragma unroll
          for (int k = 0; k < Config::kVector; ++k)
            v[i].values[k] = gradient(v[i].values[k], g[i].values[k], tensors[i], k);
          to.store(at, v[i]);
          tensors[i].store(args.inner, part.begin + at);
        }
      } else {
#pragma unroll 1
        for (int i = 0; i < kChunk; ++i) {
          const int at = first + i * kLanes + lane;
          if (!span.has(at)) continue;
          ChainTensors<Args, 1> tensors;
          tensors.load(args.inner, part.begin + at);
          to.store(at, gradient(value[at], grad[at], tensors, 0));
          tensors.store(args.inner, part.begin + at);
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

template <typename Args>
int64_t launch_chain_tensors(const Args& args, void* stream) {
  using Config = GroupNormGradientConfig;
  const int lanes = args.plane <= Config::kMaxOfWarp ? 32 : Config::kThreads;
  const int64_t units = Config::kThreads / lanes;
  const int64_t blocks = std::min((args.num_units + units - 1) / units, int64_t{Config::kMaxBlocks});
  return launch_kernel(lanes == 32 ? chain_tensors_kernel<32, Args> : chain_tensors_kernel<Config::kThreads, Args>,
                       dim3(static_cast<unsigned>(blocks)), dim3(Config::kThreads), 0, stream, args);
}

}  // namespace cuda
}  // namespace tconv
