// What kernels expect of the compiler and of CUDA's device headers: built-in variables, barriers, warp functions.
#pragma once

#include <math.h>
#include <cstring>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "races.h"

#undef __launch_bounds__
#undef __grid_constant__
#undef __global__
#undef __device__
#undef __host__
#undef __forceinline__
#define __launch_bounds__(...)
#define __grid_constant__
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#undef __noinline__
#define __noinline__

namespace emu {

inline dim3 gridDim, blockDim, blockIdx, threadIdx;

// A barrier of `expected` threads that a block or a warp passes as often as it likes.
struct Barrier {
  int arrived = 0;
  unsigned generation = 0;
  Clock gathering, passed;
  bool gathered = false;  // since they were the same

  void begin() {
    arrived = 0;
    generation = 0;
    gathered = false;
    if (!detect_races) return;  // nobody reads them
    gathering.clear();
    passed.clear();
  }

  // Threads that have ended are not waited for.
  void wait(const int& expected, bool orders_memory) {
    if (orders_memory) {
      release(gathering);
      gathered = true;
    }
    const unsigned before = generation;
    ++arrived;
    wait_until([&] { return generation != before || arrived >= expected; });
    if (generation == before) {
      arrived = 0;
      ++generation;
      if (detect_races && gathered) passed = gathering;
      gathered = false;
    }
    if (orders_memory) acquire(passed);
  }
};

inline Barrier block_barrier, warp_barriers[kMaxThreads / 32];
inline unsigned char exchanged[kMaxThreads / 32][32][64];

inline int lane() { return current % 32; }
inline int warp() { return current / 32; }
inline void converge() { warp_barriers[warp()].wait(live_in_warp[warp()], false); }

inline void begin_block() {
  races_begin_block();
  block_barrier.begin();
  for (Barrier& barrier : warp_barriers) barrier.begin();
}

// Calls use(what lane i gave) for every lane; all lanes of the warp take part.
template <typename T, typename Use>
void exchange(const T& value, Use&& use) {
  static_assert(sizeof(T) <= sizeof exchanged[0][0], "room for one value a lane");
  std::memcpy(exchanged[warp()][lane()], &value, sizeof(T));
  converge();
  use([](int of_lane) {
    T given;
    std::memcpy(&given, exchanged[warp()][of_lane], sizeof(T));
    return given;
  });
  converge();
}

template <typename T, typename Combine>
T reduce(T value, Combine&& combine) {
  T total{};
  exchange(value, [&](auto given) {
    total = given(0);
    for (int i = 1; i < 32; ++i) total = combine(total, given(i));
  });
  return total;
}

}  // namespace emu

inline void __syncthreads() { emu::block_barrier.wait(emu::live, true); }
[[noreturn]] inline void __trap() { std::abort(); }
inline void __nanosleep(unsigned) { emu::yield(); }
inline void __syncwarp() { emu::warp_barriers[emu::warp()].wait(emu::live_in_warp[emu::warp()], true); }

template <typename T>
T __shfl_sync(unsigned, T value, int from) {
  T result{};
  emu::exchange(value, [&](auto given) { result = given(from); });
  return result;
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, int distance) {
  return __shfl_sync(0xFFFFFFFFu, value, emu::lane() ^ distance);
}
inline unsigned __ballot_sync(unsigned, bool vote) {
  return emu::reduce(vote ? 1u << emu::lane() : 0u, [](unsigned a, unsigned b) { return a | b; });
}
inline bool __any_sync(unsigned mask, bool vote) { return __ballot_sync(mask, vote) != 0; }
inline bool __all_sync(unsigned mask, bool vote) { return __ballot_sync(mask, !vote) == 0; }
inline unsigned __reduce_or_sync(unsigned, unsigned v) {
  return emu::reduce(v, [](unsigned a, unsigned b) { return a | b; });
}
inline unsigned __reduce_max_sync(unsigned, unsigned v) {
  return emu::reduce(v, [](unsigned a, unsigned b) { return a > b ? a : b; });
}

inline uint32_t __float_as_uint(float v) {
  uint32_t bits;
  std::memcpy(&bits, &v, 4);
  return bits;
}
inline float __uint_as_float(uint32_t bits) {
  float v;
  std::memcpy(&v, &bits, 4);
  return v;
}
inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selectors) {
  const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) result |= static_cast<uint32_t>(bytes >> 8 * (selectors >> 4 * i & 7) & 0xFF) << 8 * i;
  return result;
}
inline float __fdividef(float a, float b) { return a / b; }
inline float rsqrtf(float v) { return 1.0f / std::sqrt(v); }
inline float rsqrt(float v) { return rsqrtf(v); }
inline double rsqrt(double v) { return 1.0 / std::sqrt(v); }
inline uint64_t __umul64hi(uint64_t a, uint64_t b) { return static_cast<unsigned __int128>(a) * b >> 64; }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
// A GPU ends the kernel.
template <typename T>
void require_aligned(const T* at, const char* what) {
  if (reinterpret_cast<uintptr_t>(at) % sizeof(T) != 0)
    emu::fail("%s of %zu bytes at %p, which is misaligned", what, sizeof(T), static_cast<const void*>(at));
}
template <typename T>
T __ldg(const T* at) {
  require_aligned(at, "__ldg");
  return *at;
}
template <typename T>
T __ldcs(const T* at) {
  require_aligned(at, "__ldcs");
  return *at;
}
template <typename T>
void __stcs(T* at, T value) {
  require_aligned(at, "__stcs");
  *at = value;
}
// Threads have turns: nothing comes between.
inline unsigned atomicMax(unsigned* at, unsigned value) {
  const unsigned before = *at;
  if (value > before) *at = value;
  return before;
}
using std::max;
using std::min;
