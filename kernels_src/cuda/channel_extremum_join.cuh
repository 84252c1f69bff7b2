// The extremum over planes of each sample, [batch][planes][plane] -> [batch][plane], rounded already. A thread takes
// the same positions of every plane. Bound by memory, most of it in L2 still.
#pragma once

#include "channel_extremum_order.cuh"
#include "fast_divisor.h"
#include "overlapped_launch.cuh"

namespace tconv {
namespace cuda {

struct ExtremumJoinConfig {
  static constexpr int kThreads = 256;
  static constexpr int kBytes = 16;  // of a vector
};

template <typename Storage>
struct ExtremumJoinArgs {
  const Storage* partials;
  Storage* out;
  int64_t extremum;
  int64_t planes, plane, vectors;  // vectors: of all samples
  FastDivisor64 by_plane;          // in vectors
};

template <typename Storage, int kVector>
__global__ void __launch_bounds__(ExtremumJoinConfig::kThreads)
    channel_extremum_join_kernel(const __grid_constant__ ExtremumJoinArgs<Storage> args) {
  using Values = norm::Vector<Storage, kVector* static_cast<int>(sizeof(Storage))>;
  await_previous_kernels();
  const int64_t vector = int64_t{blockIdx.x} * ExtremumJoinConfig::kThreads + threadIdx.x;
  if (vector >= args.vectors) return;
  const int64_t sample = args.by_plane.quotient(vector);
  const int64_t within = (vector - sample * static_cast<int64_t>(args.by_plane.divisor)) * kVector;
  const Storage* from = args.partials + sample * args.planes * args.plane + within;
  const ExtremumOrder order(args.extremum);
  float most[kVector];
#pragma unroll
  for (int i = 0; i < kVector; ++i) most[i] = ExtremumOrder::least();
#pragma unroll 4
  for (int64_t plane = 0; plane < args.planes; ++plane, from += args.plane) {
    const Values read = *reinterpret_cast<const Values*>(from);
#pragma unroll
    for (int i = 0; i < kVector; ++i) most[i] = norm::max_or_nan(most[i], order.value(norm::to_acc(read.values[i])));
  }
  Values made;
#pragma unroll
  for (int i = 0; i < kVector; ++i) made.values[i] = static_cast<Storage>(order.value(most[i]));
  *reinterpret_cast<Values*>(args.out + sample * args.plane + within) = made;
}

template <typename Storage>
int64_t launch_extremum_join(const void* partials, void* out, int64_t extremum, int64_t batch, int64_t planes,
                             int64_t plane, void* stream) {
  using Config = ExtremumJoinConfig;
  ExtremumJoinArgs<Storage> args{};
  args.partials = static_cast<const Storage*>(partials), args.out = static_cast<Storage*>(out);
  args.extremum = extremum, args.planes = planes, args.plane = plane;
  const auto launch = [&](auto kernel, int vector) -> int64_t {
    args.vectors = batch * plane / vector;
    args.by_plane = FastDivisor64::make(static_cast<uint64_t>(plane / vector));
    const int64_t blocks = norm::ceil_div(args.vectors, Config::kThreads);
    if (blocks > INT32_MAX) return cudaErrorInvalidConfiguration;
    return launch_overlapped(kernel, dim3(static_cast<unsigned>(blocks)), dim3(Config::kThreads), 0, stream, args);
  };
  constexpr int kVector = Config::kBytes / static_cast<int>(sizeof(Storage));
  const bool aligned = (reinterpret_cast<uintptr_t>(partials) | reinterpret_cast<uintptr_t>(out)) % Config::kBytes == 0;
  if (aligned && plane % kVector == 0) return launch(channel_extremum_join_kernel<Storage, kVector>, kVector);
  return launch(channel_extremum_join_kernel<Storage, 1>, 1);
}

}  // namespace cuda
}  // namespace tconv
