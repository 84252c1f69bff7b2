// Bounds of a block's shared memory: dynamic memory ends at pages that nobody may touch, static arrays lie between
// fences. A kernel that oversteps ends its launch with an error that names the access; the process goes on.
#pragma once

#include <csignal>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include "device.h"

namespace emu {

// Where dynamic shared memory begins: the runtime keeps the first KiB for itself.
constexpr uint32_t kSharedBase = 1024;
constexpr size_t kMostShared = 256 << 10, kGuardBytes = 16 << 20;
constexpr unsigned char kUntouched = 0xA5;
inline unsigned char* shared_memory = nullptr;  // 16-byte aligned; a multiple of 16 bytes, and then the guard
inline size_t dynamic_bytes = 0;                // as the launch asks for them

// [guard][dynamic shared memory, at the end of its pages][guard]
struct Arena {
  unsigned char* begin;
  // open: bytes before the second guard that may be touched
  size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE)), open = 0;

  Arena() {
    void* const at =
        mmap(nullptr, kMostShared + 2 * kGuardBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) std::abort();
    begin = static_cast<unsigned char*>(at);
  }
  unsigned char* end() const { return begin + kGuardBytes + kMostShared; }
  bool holds(const void* at) const { return at >= begin && at < end() + kGuardBytes; }

  void resize(size_t bytes) {
    const size_t wanted = (bytes + page - 1) / page * page;
    if (wanted == open) return;
    if (mprotect(end() - kMostShared, kMostShared, PROT_NONE) != 0) std::abort();
    if (wanted > 0 && mprotect(end() - wanted, wanted, PROT_READ | PROT_WRITE) != 0) std::abort();
    open = wanted;
  }
};
inline Arena arena;

inline void resize_shared(size_t bytes) {
  dynamic_bytes = bytes;
  arena.resize(bytes);
  shared_memory = arena.end() - (bytes + 15) / 16 * 16;
}

// What lies between the first accessible page and the memory, and between the memory and its multiple of 16.
inline void fill_shared() {
  std::memset(arena.end() - arena.open, kUntouched, arena.open);
  std::memset(shared_memory, 0xFF, dynamic_bytes);  // NaN in every format
}

inline bool untouched(const unsigned char* begin, const unsigned char* end) {
  for (; begin < end; ++begin)
    if (*begin != kUntouched) return false;
  return true;
}

// A static shared array and what must stay as it is around it. Its bytes are left from block to block, as on a GPU.
struct Fence {
  const char* name;
  const unsigned char *before, *after;
};
constexpr size_t kFenceBytes = 128;
inline std::vector<Fence> fences;

template <typename T>
struct Fenced {
  unsigned char before[kFenceBytes];
  alignas(16) unsigned char bytes[sizeof(T)];
  unsigned char after[kFenceBytes];

  explicit Fenced(const char* name) {
    std::memset(this, kUntouched, sizeof *this);
    std::memset(bytes, 0xFF, sizeof bytes);
    fences.push_back({name, before, after});
  }
  T& value() { return *reinterpret_cast<T*>(bytes); }
};

// At the end of a block: what its pointers did beside guarded pages. False where they overstepped.
inline bool check_fences() {
  current = -1;  // whichever thread it was
  if (!untouched(arena.end() - arena.open, shared_memory) || !untouched(shared_memory + dynamic_bytes, arena.end())) {
    explain("a write through a pointer just outside the block's %zu bytes of dynamic shared memory", dynamic_bytes);
    return false;
  }
  for (const Fence& fence : fences)
    if (!untouched(fence.before, fence.before + kFenceBytes) || !untouched(fence.after, fence.after + kFenceBytes)) {
      explain("a write through a pointer outside of the static shared memory %s", fence.name);
      std::memset(const_cast<unsigned char*>(fence.before), kUntouched, kFenceBytes);
      std::memset(const_cast<unsigned char*>(fence.after), kUntouched, kFenceBytes);
      return false;
    }
  return true;
}

// While a launch runs: faults in the arena end the launch, others are for whoever handled them before.
class FaultHandler {
 public:
  FaultHandler() {
    struct sigaction mine = {};
    mine.sa_sigaction = handle;
    mine.sa_flags = SA_SIGINFO | SA_NODEFER;  // left by a jump: the signal must not stay blocked
    sigemptyset(&mine.sa_mask);
    for (int i = 0; i < 2; ++i) sigaction(kSignals[i], &mine, &before_[i]);
  }
  ~FaultHandler() {
    for (int i = 0; i < 2; ++i) sigaction(kSignals[i], &before_[i], nullptr);
  }

 private:
  static constexpr int kSignals[2] = {SIGSEGV, SIGBUS};
  static inline struct sigaction before_[2];

  static void handle(int signal, siginfo_t* info, void* context) {
    if (!arena.holds(info->si_addr)) {
      sigaction(signal, &before_[signal == SIGSEGV ? 0 : 1], nullptr);
      return;  // and faults again
    }
    const char* what = "an access";
#ifdef __x86_64__
    what = static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & 2 ? "a write" : "a read";
#endif
    const auto offset = static_cast<unsigned char*>(info->si_addr) - shared_memory;
    fail("%s through a pointer at shared address 0x%llx, outside the block's %zu bytes from 0x%x", what,
         static_cast<long long>(offset + kSharedBase), dynamic_bytes, kSharedBase);
  }
};

}  // namespace emu
