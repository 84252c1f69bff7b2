// The rest of a chain behind its first operand of the output's shape: one pass over the outputs where they lie, or from
// there to where the chain's are wanted, from the last ones on, which are still in L2. Bound by memory: accumulators of
// the convolutions' kernels leave no registers in which operands could be waited for, and a pass of its own was
// measured to be faster than their epilogues.
#pragma once

#include <algorithm>

#include "../epilogue.h"
#include "check.h"
#include "device_limits.h"
#include "fast_divisor.h"
#include "storage.cuh"

namespace tconv {
namespace cuda {

struct JoinConfig {
  static constexpr int kThreads = 256, kMinBlocks = 2;  // of an SM
  static constexpr int kBytes = 16, kVectors = 4;       // loaded at once, of a thread
  static constexpr int kBlocksPerSm = 8;                // launched
};

template <typename Storage>
struct JoinArgs {
  const Storage* from;
  Storage* out;
  EpilogueArgs<Storage> epilogue;
  int64_t count, num_blocks;
  const int* guard;  // null: always; else only where it is raised
  bool vectors;      // all tensors begin at whole vectors
  FastDivisor64 by_plane, by_channels;

  __device__ __forceinline__ int64_t channel_of(int64_t plane) const {
    return plane - by_channels.quotient(plane) * static_cast<int64_t>(by_channels.divisor);
  }
};

template <typename Storage>
__global__ void __launch_bounds__(JoinConfig::kThreads, JoinConfig::kMinBlocks)
    join_tensors_kernel(const __grid_constant__ JoinArgs<Storage> args) {
  using Config = JoinConfig;
  if (args.guard != nullptr && *args.guard == 0) return;
  using Acc = typename StorageTraits<Storage>::Acc;
  constexpr int kVector = Config::kBytes / static_cast<int>(sizeof(Storage)), kVectors = Config::kVectors;
  struct alignas(Config::kBytes) Vector {
    Storage values[kVector];
  };
  const auto join = [&](Storage value, const auto& operands, int64_t at, int64_t channel) {
    return to_storage<Storage>(
        Epilogue::join<Acc, Storage>(static_cast<Acc>(value), args.epilogue, channel, operands, at));
  };
  for (int64_t done = blockIdx.x; done < args.num_blocks; done += gridDim.x) {
    const int64_t block = args.num_blocks - 1 - done;
    const int64_t first = (block * kVectors * Config::kThreads + threadIdx.x) * kVector;
    Vector values[kVectors], operands[kVectors][kMaxChannelVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int64_t at = first + i * Config::kThreads * kVector;
      if (!args.vectors || at + kVector > args.count) continue;
      values[i] = *reinterpret_cast<const Vector*>(args.from + at);
#pragma unroll
      for (int k = 0; k < kMaxChannelVectors; ++k)
        if (Epilogue::reads(k))
          operands[i][k] = *reinterpret_cast<const Vector*>(args.epilogue.channel_vectors[k] + at);
    }
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int64_t at = first + i * Config::kThreads * kVector;
      if (args.vectors && at + kVector <= args.count) {
        const Storage* rows[kMaxChannelVectors];
#pragma unroll
        for (int k = 0; k < kMaxChannelVectors; ++k) rows[k] = operands[i][k].values;
        const int64_t plane = args.by_plane.quotient(at), channel = args.channel_of(plane);
        const bool in_one = args.by_plane.quotient(at + kVector - 1) == plane;
#pragma unroll
        for (int j = 0; j < kVector; ++j)
          values[i].values[j] =
              join(values[i].values[j], rows, j, in_one ? channel : args.channel_of(args.by_plane.quotient(at + j)));
        *reinterpret_cast<Vector*>(args.out + at) = values[i];
      } else {
#pragma unroll 1
        for (int64_t j = at; j < at + kVector && j < args.count; ++j)
          args.out[j] =
              join(args.from[j], args.epilogue.channel_vectors, j, args.channel_of(args.by_plane.quotient(j)));
      }
    }
  }
}

template <typename Storage>
int64_t launch_join_typed(const ConvCall& call, const int* guard) {
  using Config = JoinConfig;
  DeviceLimits device;
  TCONV_RETURN_IF_ERROR(query_device_limits(&device));
  JoinArgs<Storage> args{};
  args.guard = guard;
  args.out = static_cast<Storage*>(call.joined.out);
  args.from = call.joined.from != nullptr ? static_cast<const Storage*>(call.joined.from) : args.out;
  args.epilogue = make_epilogue_args<Storage>(call);
  args.count = call.joined.planes * call.joined.plane;
  constexpr int64_t kOfBlock = Config::kVectors * Config::kThreads * Config::kBytes / static_cast<int>(sizeof(Storage));
  args.num_blocks = (args.count + kOfBlock - 1) / kOfBlock;
  args.by_plane = FastDivisor64::make(static_cast<uint64_t>(call.joined.plane));
  args.by_channels = FastDivisor64::make(static_cast<uint64_t>(call.layer.out_channels));
  args.vectors = (reinterpret_cast<uintptr_t>(args.out) | reinterpret_cast<uintptr_t>(args.from)) % Config::kBytes == 0;
  for (int k = 0; k < kMaxChannelVectors; ++k)
    if (Epilogue::reads(k))
      args.vectors = args.vectors && reinterpret_cast<uintptr_t>(call.channel_vectors[k]) % Config::kBytes == 0;
  const int64_t most = static_cast<int64_t>(device.sm_count) * Config::kBlocksPerSm;
  return launch_kernel(join_tensors_kernel<Storage>, dim3(static_cast<unsigned>(std::min(args.num_blocks, most))),
                       dim3(Config::kThreads), 0, call.stream, args);
}

// Nothing where the chain has no such operand, or another call applies it; with `guard`, on the device, only where it
// is raised.
inline int64_t launch_join(const ConvCall& call, const int* guard = nullptr) {
  if (!Epilogue::reads_any() || call.joined.planes == 0) return kOk;
  switch (call.dtype) {
#ifndef TCONV_WITHOUT_FP32
    case kFloat32: return launch_join_typed<float>(call, guard);
    case kFloat64: return launch_join_typed<double>(call, guard);
#endif
#ifndef TCONV_WITHOUT_FP16
    case kFloat16: return launch_join_typed<__half>(call, guard);
#endif
#ifndef TCONV_WITHOUT_BF16
    case kBFloat16: return launch_join_typed<__nv_bfloat16>(call, guard);
#endif
    default: return kUnsupportedDType;
  }
}

}  // namespace cuda
}  // namespace tconv
