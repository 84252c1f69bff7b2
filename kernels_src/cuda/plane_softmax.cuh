// Softmax over all positions of a channel of [batch, channels, plane], with a tail's steps behind it: the largest value
// and the sum of every chunk of a plane, then the planes' from those, and the values once more, the last chunks first,
// which the caches still have. Bound by memory: two reads and one write.
#pragma once

#include "../tail_call.h"
#include "../epilogue.h"
#include "../generated_tail.h"
#include "fast_divisor.h"
#include "group_norm_storage.cuh"

namespace tconv {
namespace cuda {

template <typename S>
struct PlaneSoftmaxConfig {
  static constexpr int kThreads = 256;
  static constexpr int kVector = 16 / static_cast<int>(sizeof(S));
  static constexpr int kHeld = 32 / kVector;  // vectors of a thread
  static constexpr int kChunk = kThreads * kHeld * kVector;
};

// Of a chunk: sum is of exp(value - largest).
struct SoftmaxPartial {
  float largest, sum;
};

template <typename S>
struct PlaneSoftmaxArgs {
  const S* value;
  S* result;
  SoftmaxPartial* partials;  // [plane][chunk]
  int64_t plane;
  int chunks, channels;  // of a plane; of a sample
  bool in_vectors;
  FastDivisor by_chunks, by_channels;
  EpilogueArgs<S> steps;
};

// exp(v - largest); where all are -inf, zero or NaN.
__device__ __forceinline__ float softmax_term(float v, float largest) {
  if (largest == -INFINITY) return v == -INFINITY ? 0.0f : v;
  return expf(v - largest);
}

template <typename F>
__device__ __forceinline__ float over_block(float value, float* shared, F f) {
  for (int distance = 16; distance > 0; distance /= 2) value = f(value, __shfl_xor_sync(0xFFFFFFFFu, value, distance));
  __syncthreads();  // what was there is read
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  float all = shared[0];
  for (int i = 1; i < static_cast<int>(blockDim.x) / 32; ++i) all = f(all, shared[i]);
  return all;
}

__device__ __forceinline__ float larger(float a, float b) { return fmaxf(a, b); }
__device__ __forceinline__ float added(float a, float b) { return a + b; }

// The thread's values of a chunk, -inf where there is none. `present`: how many the chunk has.
template <typename S>
__device__ __forceinline__ void load_chunk(float (&held)[PlaneSoftmaxConfig<S>::kHeld][PlaneSoftmaxConfig<S>::kVector],
                                           const S* from, int present, bool in_vectors) {
  using Config = PlaneSoftmaxConfig<S>;
  constexpr int kVector = Config::kVector;
  if (in_vectors) {
    norm::Vector<S, 16> vectors[Config::kHeld];
#pragma unroll
    for (int i = 0; i < Config::kHeld; ++i) {
      const int at = (i * Config::kThreads + static_cast<int>(threadIdx.x)) * kVector;
      if (at < present) vectors[i] = *reinterpret_cast<const norm::Vector<S, 16>*>(from + at);
    }
#pragma unroll
    for (int i = 0; i < Config::kHeld; ++i) {
      const int at = (i * Config::kThreads + static_cast<int>(threadIdx.x)) * kVector;
#pragma unroll
      for (int j = 0; j < kVector; ++j) held[i][j] = at < present ? norm::to_acc(vectors[i].values[j]) : -INFINITY;
    }
  } else {
#pragma unroll
    for (int i = 0; i < Config::kHeld; ++i)
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        const int at = (i * kVector + j) * Config::kThreads + static_cast<int>(threadIdx.x);
        held[i][j] = at < present ? norm::to_acc(from[at]) : -INFINITY;
      }
  }
}

template <typename S>
__global__ void __launch_bounds__(PlaneSoftmaxConfig<S>::kThreads)
    plane_softmax_partials_kernel(PlaneSoftmaxArgs<S> a) {
  using Config = PlaneSoftmaxConfig<S>;
  __shared__ float shared[Config::kThreads / 32];
  const uint32_t plane = a.by_chunks.quotient(blockIdx.x), chunk = blockIdx.x - plane * a.chunks;
  const int64_t first = int64_t{chunk} * Config::kChunk;
  const int present = static_cast<int>(a.plane - first < Config::kChunk ? a.plane - first : Config::kChunk);
  float held[Config::kHeld][Config::kVector];
  load_chunk<S>(held, a.value + plane * a.plane + first, present, a.in_vectors);
  float largest = -INFINITY;
#pragma unroll
  for (int i = 0; i < Config::kHeld; ++i)
#pragma unroll
    for (int j = 0; j < Config::kVector; ++j) largest = fmaxf(largest, held[i][j]);
  largest = over_block(largest, shared, larger);
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < Config::kHeld; ++i)
#pragma unroll
    for (int j = 0; j < Config::kVector; ++j) sum += softmax_term(held[i][j], largest);
  sum = over_block(sum, shared, added);
  if (threadIdx.x == 0) a.partials[blockIdx.x] = {largest, sum};
}

template <typename Step, typename S>
__global__ void __launch_bounds__(PlaneSoftmaxConfig<S>::kThreads) plane_softmax_kernel(PlaneSoftmaxArgs<S> a) {
  using Config = PlaneSoftmaxConfig<S>;
  constexpr int kVector = Config::kVector;
  __shared__ float shared[Config::kThreads / 32];
  const uint32_t block = gridDim.x - 1 - blockIdx.x;
  const uint32_t plane = a.by_chunks.quotient(block), chunk = block - plane * a.chunks;
  const int64_t first = int64_t{chunk} * Config::kChunk;
  const int present = static_cast<int>(a.plane - first < Config::kChunk ? a.plane - first : Config::kChunk);
  const int64_t begin = plane * a.plane + first;
  float held[Config::kHeld][kVector];
  load_chunk<S>(held, a.value + begin, present, a.in_vectors);

  const SoftmaxPartial* const of_plane = a.partials + int64_t{plane} * a.chunks;
  float largest = -INFINITY, sum = 0.0f;
  for (int i = threadIdx.x; i < a.chunks; i += Config::kThreads) largest = fmaxf(largest, of_plane[i].largest);
  largest = over_block(largest, shared, larger);
  for (int i = threadIdx.x; i < a.chunks; i += Config::kThreads)
    sum += of_plane[i].sum * expf(of_plane[i].largest - largest);  // NaN where all are -inf, as PyTorch has it
  sum = over_block(sum, shared, added);
  const float scale = 1.0f / sum;
  const int64_t channel = plane - a.by_channels.quotient(plane) * a.channels;
  S* const to = a.result + begin;
#pragma unroll
  for (int i = 0; i < Config::kHeld; ++i) {
    S made[kVector];
#pragma unroll
    for (int j = 0; j < kVector; ++j)
      made[j] = to_storage<S>(Step::template apply<float, S>(expf(held[i][j] - largest) * scale, a.steps, channel));
    if (a.in_vectors) {
      const int at = (i * Config::kThreads + static_cast<int>(threadIdx.x)) * kVector;
      norm::Vector<S, 16> vector;
      memcpy(&vector, made, sizeof(vector));
      if (at < present) norm::store_streaming<S, 16>(to + at, vector);
    } else {
#pragma unroll
      for (int j = 0; j < kVector; ++j) {
        const int at = (i * kVector + j) * Config::kThreads + static_cast<int>(threadIdx.x);
        if (at < present) to[at] = made[j];
      }
    }
  }
}

template <typename S>
int64_t plane_softmax_chunks(const TailCall& call) {
  return norm::ceil_div(call.plane, PlaneSoftmaxConfig<S>::kChunk);
}

template <typename S>
int64_t plane_softmax_workspace_bytes(const TailCall& call) {
  return call.batch * call.channels * plane_softmax_chunks<S>(call) * static_cast<int64_t>(sizeof(SoftmaxPartial));
}

// kUnsupportedKernel for 2^31 chunks or more.
template <typename Step, typename S>
int64_t launch_plane_softmax(const TailCall& call) {
  using Config = PlaneSoftmaxConfig<S>;
  const int64_t chunks = plane_softmax_chunks<S>(call), blocks = call.batch * call.channels * chunks;
  if (blocks > INT32_MAX) return unsupported_tail(call, "2^31 chunks of planes or more");
  PlaneSoftmaxArgs<S> args{};
  args.value = static_cast<const S*>(call.value), args.result = static_cast<S*>(call.result);
  args.partials = static_cast<SoftmaxPartial*>(call.conv.workspace);
  args.plane = call.plane;
  args.chunks = static_cast<int>(chunks), args.channels = static_cast<int>(call.channels);
  args.in_vectors = call.plane % Config::kVector == 0 && norm::elements_past_boundary(args.value) == 0 &&
                    norm::elements_past_boundary(args.result) == 0;
  args.by_chunks = FastDivisor::make(static_cast<uint32_t>(chunks));
  args.by_channels = FastDivisor::make(static_cast<uint32_t>(call.channels));
  args.steps = make_epilogue_args<S>(call.conv);
  const auto stream = static_cast<cudaStream_t>(call.conv.stream);
  TCONV_RETURN_IF_ERROR(norm::launch(plane_softmax_partials_kernel<S>, blocks, Config::kThreads, stream, args));
  return norm::launch(plane_softmax_kernel<Step, S>, blocks, Config::kThreads, stream, args);
}

}  // namespace cuda
}  // namespace tconv
