// Shared memory with addresses as in the shared window, and what instructions do to it.
#pragma once

#include <cstdlib>
#include <deque>
#include <map>

#include "guards.h"

namespace emu {

// `what`: the instruction, for the error. Its address must be a multiple of what it accesses at once, at most 16 bytes.
inline unsigned char* at_shared(uint32_t address, size_t bytes, const char* what) {
  if (address < kSharedBase || address + bytes > kSharedBase + dynamic_bytes)
    fail("%s of %zu bytes at shared address 0x%x, outside the block's %zu bytes from 0x%x", what, bytes, address,
         dynamic_bytes, kSharedBase);
  if (address % (bytes < 16 ? bytes : 16) != 0)
    fail("%s of %zu bytes at shared address 0x%x, which is misaligned", what, bytes, address);
  return shared_memory + (address - kSharedBase);
}

inline void load_shared(void* to, uint32_t address, size_t bytes, const char* what) {
  std::memcpy(to, at_shared(address, bytes, what), bytes);
  note_read(address - kSharedBase, bytes);
}
inline void store_shared(uint32_t address, const void* from, size_t bytes, const char* what) {
  std::memcpy(at_shared(address, bytes, what), from, bytes);
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
    if (detect_races) passed = gathering;
    progressed = true;
  }
};
inline std::map<uint32_t, Mbarrier> mbarriers;

inline Mbarrier& mbarrier_at(uint32_t address, const char* what) {
  const auto found = mbarriers.find(address);
  if (found == mbarriers.end()) fail("%s at shared address 0x%x, where no mbarrier was made", what, address);
  return found->second;
}

// cp.async: copies of one thread, made as late as it may be: when their group is awaited.
struct AsyncCopy {
  uint32_t to;
  const void* from;  // null: zeros
  uint32_t bytes;
};
struct AsyncCopies {
  std::vector<AsyncCopy> open;
  std::deque<std::vector<AsyncCopy>> groups;

  void clear() {
    open.clear();
    groups.clear();
  }
};
inline AsyncCopies async_copies[kMaxThreads];

// cp.async.bulk to global memory, of one thread: likewise, for the copy engine reads when it will.
struct BulkStore {
  void* to;
  uint32_t from, bytes;
};
struct BulkStores {
  std::vector<BulkStore> open;
  std::deque<std::vector<BulkStore>> groups;

  void clear() {
    open.clear();
    groups.clear();
  }
};
inline BulkStores bulk_stores[kMaxThreads];

// Operands of products under way, by warp: read again, so to say, with every later product of their group, and when
// they are awaited.
struct Reads {
  struct Range {
    uint32_t at, bytes;
  };
  std::vector<Range> open;
  std::deque<std::vector<Range>> groups;
  size_t noted = 0;       // of those in `open`
  uint64_t at_write = 0;  // how many writes there had been then
  uint32_t at_time = 0;   // by the reader's own clock

  void clear() {
    open.clear();
    groups.clear();
    noted = 0;
  }
  // Since nobody wrote and the reader's clock stands, what was noted is as it would be noted now.
  void note() {
    const uint32_t now = clocks[current].at[current];
    if (at_write != num_writes || at_time != now) noted = 0;
    for (; noted < open.size(); ++noted) note_read(open[noted].at, open[noted].bytes);
    at_write = num_writes;
    at_time = now;
  }
};
inline Reads product_reads[kMaxThreads / 32];

inline void begin_shared() {
  if (detect_races) forget_words((dynamic_bytes + kWordBytes - 1) / kWordBytes);
  fill_shared();
  mbarriers.clear();
  for (int thread = 0; thread < num_threads; ++thread) {  // a deque that is made anew allocates
    async_copies[thread].clear();
    bulk_stores[thread].clear();
  }
  for (int warp = 0; warp < (num_threads + 31) / 32; ++warp) product_reads[warp].clear();
}

}  // namespace emu
