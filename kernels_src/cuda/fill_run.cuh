// Runs of equal outputs, stored in whole lines of the cache: stores across lines leave parts of sectors, and take
// memory twice as long.
#pragma once

#include <cstring>

#include "storage.cuh"

namespace tconv {
namespace cuda {

// Fills `count` outputs with one value, `threads` threads together; `thread`: which of them this is.
template <typename Storage>
__device__ __forceinline__ void fill_run(Storage* out, int64_t count, Storage value, int thread, int threads) {
  constexpr int kLine = 128 / sizeof(Storage), kVector = sizeof(uint4) / sizeof(Storage);
  const int past = static_cast<int>(reinterpret_cast<uintptr_t>(out) / sizeof(Storage) % kLine);
  const int64_t head = min(count, static_cast<int64_t>((kLine - past) % kLine)), vectors = (count - head) / kVector;
  alignas(uint4) Storage values[kVector];
#pragma unroll
  for (int i = 0; i < kVector; ++i) values[i] = value;
  uint4 whole;
  memcpy(&whole, values, sizeof(whole));
  for (int64_t i = thread; i < head; i += threads) out[i] = value;
#pragma unroll 4
  for (int64_t i = thread; i < vectors; i += threads) reinterpret_cast<uint4*>(out + head)[i] = whole;
  for (int64_t i = head + vectors * kVector + thread; i < count; i += threads) out[i] = value;
}

}  // namespace cuda
}  // namespace tconv
