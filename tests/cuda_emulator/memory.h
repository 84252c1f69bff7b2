// Shared memory with addresses as in the shared window, and what instructions do to it.
#pragma once

#include <cstdlib>
#include <deque>
#include <map>

#include "device.h"

namespace emu {

// Where dynamic shared memory begins: the runtime keeps the first KiB for itself.
constexpr uint32_t kSharedBase = 1024;
inline std::vector<unsigned char> shared_bytes;
inline unsigned char* shared_memory = nullptr;  // aligned to 1024

inline unsigned char* at_shared(uint32_t address, size_t bytes) {
  if (address < kSharedBase || address + bytes > kSharedBase + words.size() * 4) {
    std::fprintf(stderr, "shared address %u + %zu is outside the block's %zu bytes\n", address, bytes, words.size() * 4);
    std::abort();
  }
  return shared_memory + (address - kSharedBase);
}

inline void load_shared(void* to, uint32_t address, size_t bytes) {
  std::memcpy(to, at_shared(address, bytes), bytes);
  note_read(address - kSharedBase, bytes);
}
inline void store_shared(uint32_t address, const void* from, size_t bytes) {
  std::memcpy(at_shared(address, bytes), from, bytes);
  note_write(address - kSharedBase, bytes);
}

// An mbarrier, kept beside the word it has in shared memory.
struct Mbarrier {
  int expected = 0, pending = 0;
  int64_t bytes = 0;  // that are still to come in this phase
  uint32_t phase = 0;
  Clock gathering, passed;

  void advance() {
    if (pending > 0 || bytes > 0) return;
    pending = expected;
    ++phase;
    passed = gathering;
    progressed = true;
  }
};
inline std::map<uint32_t, Mbarrier> mbarriers;

// cp.async: copies of one thread, made as late as it may be: when their group is awaited.
struct AsyncCopy {
  uint32_t to;
  const void* from;
};
struct AsyncCopies {
  std::vector<AsyncCopy> open;
  std::deque<std::vector<AsyncCopy>> groups;
};
inline AsyncCopies async_copies[kMaxThreads];

// Operands of products under way, by warp: read again, so to say, when they are awaited.
struct Reads {
  struct Range {
    uint32_t at, bytes;
  };
  std::vector<Range> open;
  std::deque<std::vector<Range>> groups;
};
inline Reads product_reads[kMaxThreads / 32];

inline void begin_shared(size_t bytes) {
  words.assign((bytes + 3) / 4, Word{{-1, 0}, {}});
  shared_bytes.assign(bytes + 1024, 0xFF);  // NaN in every format
  shared_memory = shared_bytes.data() + (1024 - reinterpret_cast<uintptr_t>(shared_bytes.data()) % 1024) % 1024;
  mbarriers.clear();
  for (AsyncCopies& copies : async_copies) copies = {};
  for (Reads& reads : product_reads) reads = {};
}

}  // namespace emu
