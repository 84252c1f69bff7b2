// The threads of one block as fibers of one host thread: a thread runs until it waits for another.
#pragma once

#include <csetjmp>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <vector>

#include <ucontext.h>

namespace emu {

struct Fiber {
  ucontext_t start;
  jmp_buf resume;
  std::unique_ptr<char[]> stack;
  bool started = false, done = false;
};

constexpr int kStackBytes = 192 * 1024;
constexpr int kMaxThreads = 1024;
inline std::vector<Fiber> fibers(kMaxThreads);
inline jmp_buf scheduler;
inline int current = 0, num_threads = 0, live = 0;
inline int live_in_warp[kMaxThreads / 32];
inline bool progressed = false;  // since the scheduler last went round

// What a kernel does in each thread; set by the launch.
struct Body {
  virtual void run() = 0;
  virtual void enter(int thread) = 0;                                  // threadIdx and the like
  virtual void explain(char* to, size_t room, const char* fault) = 0;  // with names of kernel, block and thread
};
inline Body* body = nullptr;

inline void yield() {
  if (_setjmp(fibers[current].resume) == 0) _longjmp(scheduler, 1);
}

inline char failure[600] = "";  // why the launch ended early, if it did

// Text for `failure`, with who did it; the first one counts.
inline void explain_list(const char* format, va_list values) {
  if (failure[0] != 0) return;
  char text[320];
  std::vsnprintf(text, sizeof text, format, values);
  body->explain(failure, sizeof failure, text);
}
__attribute__((format(printf, 1, 2))) inline void explain(const char* format, ...) {
  va_list values;
  va_start(values, format);
  explain_list(format, values);
  va_end(values);
}

// Ends the launch, from within a thread of it.
__attribute__((format(printf, 1, 2))) [[noreturn]] inline void fail(const char* format, ...) {
  va_list values;
  va_start(values, format);
  explain_list(format, values);
  va_end(values);
  _longjmp(scheduler, 1);
}

template <typename Condition>
void wait_until(Condition&& ready) {
  while (!ready()) yield();
  progressed = true;
}

// Of one block's thread after another's: to start a context takes two calls of the system.
inline void fiber_main() {
  for (;;) {
    body->run();
    fibers[current].done = true;
    --live;
    --live_in_warp[current / 32];
    progressed = true;
    yield();
  }
}

// Runs all threads of a block; `seed` shuffles whose turn it is. False where one fails or they wait for each other for
// ever.
inline bool run_block(int threads, uint32_t seed) {
  num_threads = live = threads;
  for (int warp = 0; warp < kMaxThreads / 32; ++warp) live_in_warp[warp] = 0;
  for (int i = 0; i < threads; ++i) {
    Fiber& fiber = fibers[i];
    if (!fiber.stack) fiber.stack.reset(new char[kStackBytes]);
    fiber.started = fiber.started && fiber.done;  // else a launch ended early, in the middle of it
    fiber.done = false;
    ++live_in_warp[i / 32];
  }
  const uint32_t warps = (threads + 31) / 32;
  while (live > 0) {
    progressed = false;
    // Warps in another order each time round, from another one on, forwards or backwards.
    seed = seed == 0 ? 0 : seed * 1664525u + 1013904223u;
    const uint32_t first = (seed >> 8) % warps;
    const bool backwards = seed >> 31;
    for (uint32_t turn = 0; turn < warps; ++turn) {
      const uint32_t warp = (backwards ? warps - 1 - turn + first : turn + first) % warps;
      for (int i = warp * 32; i < static_cast<int>(warp * 32 + 32) && i < threads; ++i) {
        Fiber& fiber = fibers[i];
        if (fiber.done) continue;
        current = i;
        body->enter(i);
        if (_setjmp(scheduler) != 0) {
          if (failure[0] != 0) return false;
          continue;
        }
        if (fiber.started) _longjmp(fiber.resume, 1);
        fiber.started = true;
        getcontext(&fiber.start);
        fiber.start.uc_stack.ss_sp = fiber.stack.get();
        fiber.start.uc_stack.ss_size = kStackBytes;
        fiber.start.uc_link = nullptr;
        makecontext(&fiber.start, fiber_main, 0);
        setcontext(&fiber.start);
      }
    }
    if (!progressed) return false;
  }
  return true;
}

}  // namespace emu
