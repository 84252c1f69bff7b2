// The largest value and the sum of every chunk of a plane, for softmax over all positions of a channel.
#pragma once

#include <initializer_list>

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

// Where in its chunk the thread's value [i][j] is.
template <typename S>
__device__ __forceinline__ int chunk_place(int i, int j, bool in_vectors) {
  using Config = PlaneSoftmaxConfig<S>;
  const int thread = static_cast<int>(threadIdx.x);
  return in_vectors ? (i * Config::kThreads + thread) * Config::kVector + j
                    : (i * Config::kVector + j) * Config::kThreads + thread;
}

// The thread's values [i][...] of a chunk, `absent` where there is none. `present`: how many the chunk has.
template <typename S>
__device__ __forceinline__ void load_of_chunk(float (&held)[PlaneSoftmaxConfig<S>::kVector], int i, const S* from,
                                              int present, bool in_vectors, float absent) {
  using Config = PlaneSoftmaxConfig<S>;
  if (in_vectors) {
    norm::Vector<S, 16> vector;
    const int at = chunk_place<S>(i, 0, true);
    if (at < present) vector = *reinterpret_cast<const norm::Vector<S, 16>*>(from + at);
#pragma unroll
    for (int j = 0; j < Config::kVector; ++j) held[j] = at < present ? norm::to_acc(vector.values[j]) : absent;
  } else {
#pragma unroll
    for (int j = 0; j < Config::kVector; ++j) {
      const int at = chunk_place<S>(i, j, false);
      held[j] = at < present ? norm::to_acc(from[at]) : absent;
    }
  }
}

// All of them.
template <typename S>
__device__ __forceinline__ void load_chunk(float (&held)[PlaneSoftmaxConfig<S>::kHeld][PlaneSoftmaxConfig<S>::kVector],
                                           const S* from, int present, bool in_vectors, float absent = -INFINITY) {
  if (in_vectors) {
#pragma unroll
    for (int i = 0; i < PlaneSoftmaxConfig<S>::kHeld; ++i) load_of_chunk<S>(held[i], i, from, present, true, absent);
  } else {
#pragma unroll
    for (int i = 0; i < PlaneSoftmaxConfig<S>::kHeld; ++i) load_of_chunk<S>(held[i], i, from, present, false, absent);
  }
}

// The thread's values of a chunk, in the type that is stored.
template <typename S>
__device__ __forceinline__ void store_chunk(
    S* to, const float (&made)[PlaneSoftmaxConfig<S>::kHeld][PlaneSoftmaxConfig<S>::kVector], int present,
    bool in_vectors) {
  using Config = PlaneSoftmaxConfig<S>;
#pragma unroll
  for (int i = 0; i < Config::kHeld; ++i) {
    norm::Vector<S, 16> vector;
#pragma unroll
    for (int j = 0; j < Config::kVector; ++j) vector.values[j] = to_storage<S>(made[i][j]);
    const int first = chunk_place<S>(i, 0, in_vectors);
    if (in_vectors) {
      if (first < present) norm::store_streaming<S, 16>(to + first, vector);
    } else {
#pragma unroll
      for (int j = 0; j < Config::kVector; ++j)
        if (first + j * Config::kThreads < present) to[first + j * Config::kThreads] = vector.values[j];
    }
  }
}

// Of a block: which chunk it has, counted from the end in kernels that read what others have read before.
template <typename S>
struct BlockChunk {
  uint32_t number, plane;
  int64_t begin;
  int present;

  __device__ __forceinline__ BlockChunk(const PlaneSoftmaxArgs<S>& a, bool from_the_end)
      : number(from_the_end ? gridDim.x - 1 - blockIdx.x : blockIdx.x), plane(a.by_chunks.quotient(number)) {
    constexpr int kChunk = PlaneSoftmaxConfig<S>::kChunk;
    const int64_t first = int64_t{number - plane * a.chunks} * kChunk;
    begin = plane * a.plane + first;
    present = static_cast<int>(a.plane - first < kChunk ? a.plane - first : kChunk);
  }
};

// Of a plane, from its chunks: softmax is exp(value - largest) * scale.
struct PlaneScale {
  float largest, scale;
};

template <typename S>
__device__ __forceinline__ PlaneScale plane_scale(const PlaneSoftmaxArgs<S>& a, uint32_t plane, float* shared) {
  const SoftmaxPartial* const of_plane = a.partials + int64_t{plane} * a.chunks;
  float largest = -INFINITY, sum = 0.0f;
  for (int i = threadIdx.x; i < a.chunks; i += PlaneSoftmaxConfig<S>::kThreads)
    largest = fmaxf(largest, of_plane[i].largest);
  largest = over_block(largest, shared, larger);
  for (int i = threadIdx.x; i < a.chunks; i += PlaneSoftmaxConfig<S>::kThreads)
    sum += of_plane[i].sum * expf(of_plane[i].largest - largest);  // NaN where all are -inf, as PyTorch has it
  return {largest, 1.0f / over_block(sum, shared, added)};
}

template <typename S>
__global__ void __launch_bounds__(PlaneSoftmaxConfig<S>::kThreads)
    plane_softmax_partials_kernel(PlaneSoftmaxArgs<S> a) {
  using Config = PlaneSoftmaxConfig<S>;
  __shared__ float shared[Config::kThreads / 32];
  const BlockChunk<S> chunk(a, false);
  float held[Config::kHeld][Config::kVector];
  load_chunk<S>(held, a.value + chunk.begin, chunk.present, a.in_vectors);
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

template <typename S>
int64_t plane_softmax_chunks(const TailCall& call) {
  return norm::ceil_div(call.plane, PlaneSoftmaxConfig<S>::kChunk);
}

// But for the partials, whose place is the caller's to say. in_vectors: value and `others` allow it.
template <typename S>
PlaneSoftmaxArgs<S> plane_softmax_args(const TailCall& call, std::initializer_list<const void*> others) {
  PlaneSoftmaxArgs<S> args{};
  args.value = static_cast<const S*>(call.value), args.result = static_cast<S*>(call.result);
  args.plane = call.plane;
  args.chunks = static_cast<int>(plane_softmax_chunks<S>(call)), args.channels = static_cast<int>(call.channels);
  args.in_vectors = call.plane % PlaneSoftmaxConfig<S>::kVector == 0 && norm::elements_past_boundary(args.value) == 0;
  for (const void* other : others)
    args.in_vectors = args.in_vectors && norm::elements_past_boundary(static_cast<const S*>(other)) == 0;
  args.by_chunks = FastDivisor::make(static_cast<uint32_t>(args.chunks));
  args.by_channels = FastDivisor::make(static_cast<uint32_t>(call.channels));
  args.steps = make_epilogue_args<S>(call.conv);
  return args;
}

}  // namespace cuda
}  // namespace tconv
