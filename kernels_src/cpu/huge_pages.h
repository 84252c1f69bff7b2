// Huge pages under large outputs: their first touch then takes a few page faults instead of thousands.
#pragma once

#include "../layer.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace tconv {
namespace cpu {

inline int64_t output_bytes(const ConvTransposeLayer& p, int64_t element_size) {
  return p.batch * p.out_channels * p.out_h * p.out_w * element_size;
}

// A hint, for memory that is going to be written as a whole; only pages that lie inside it are concerned.
inline void prefer_huge_pages([[maybe_unused]] void* memory, [[maybe_unused]] int64_t bytes) {
#if defined(__linux__)
  constexpr uintptr_t kHugePage = 2 << 20;
  const uintptr_t address = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t begin = (address + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t end = (address + static_cast<uintptr_t>(bytes)) / kHugePage * kHugePage;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

}  // namespace cpu
}  // namespace tconv
