// Finds accesses to shared memory that no synchronisation orders, whatever order they happened in here: every thread
// has a vector clock, synchronisation joins clocks, and every word remembers who wrote and who has read it since.
// Source: Flanagan, Freund, "FastTrack: Efficient and Precise Dynamic Race Detection", PLDI 2009.
#pragma once

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "fibers.h"

namespace emu {

struct Clock {
  std::vector<uint32_t> at;

  void clear() {
    at.resize(num_threads);
    if (!at.empty()) std::memset(at.data(), 0, at.size() * sizeof at[0]);
  }
  // By vectors, whatever the rest is optimised for: a block's barrier joins the clocks of all its threads.
  [[gnu::noinline, gnu::optimize("O3")]] void join(const Clock& other) {
    uint32_t* const mine = at.data();
    const uint32_t* const others = other.at.data();
    const size_t count = at.size();
    for (size_t i = 0; i < count; ++i) mine[i] = others[i] > mine[i] ? others[i] : mine[i];
  }
};

struct Access {
  int thread;
  uint32_t time;
};

struct Word {
  Access written;
  std::vector<Access> read;
  uint64_t block = 0;  // whose accesses these are
};

inline bool detect_races = false;
inline std::vector<Clock> clocks;
constexpr size_t kWordBytes = 2;  // the least that a kernel stores
inline std::vector<Word> words;   // of dynamic shared memory
inline uint64_t num_blocks = 0, num_writes = 0;
inline int64_t num_races = 0;
inline std::string first_races;

inline void races_begin_block() {
  if (!detect_races) return;
  clocks.resize(num_threads);
  for (int i = 0; i < num_threads; ++i) {
    clocks[i].clear();
    clocks[i].at[i] = 1;
  }
}

inline void report_race(const char* kind, const Access& before, size_t word) {
  if (++num_races > 20) return;
  char text[160];
  std::snprintf(text, sizeof text, "%s at byte %zu: thread %d, then thread %d\n", kind, word * kWordBytes,
                before.thread, current);
  first_races += text;
}

inline bool ordered(const Access& before) {
  return before.thread < 0 || before.thread == current || before.time <= clocks[current].at[before.thread];
}

// At the head of a block: `count` words that nobody has accessed; they lose what they hold when next asked for.
inline void forget_words(size_t count) {
  if (words.size() < count) words.resize(count);
  ++num_blocks;
}
inline Word& word_at(size_t index) {
  Word& word = words[index];
  if (word.block == num_blocks) return word;
  word.written = {-1, 0};
  word.read.clear();
  word.block = num_blocks;
  return word;
}

inline void note_write(size_t offset, size_t bytes) {
  if (!detect_races) return;
  ++num_writes;
  for (size_t i = offset / kWordBytes; i < (offset + bytes + kWordBytes - 1) / kWordBytes; ++i) {
    Word& word = word_at(i);
    if (!ordered(word.written)) report_race("write after write", word.written, i);
    for (const Access& access : word.read)
      if (!ordered(access)) report_race("write after read", access, i);
    word.read.clear();
    word.written = {current, clocks[current].at[current]};
  }
}

inline void note_read(size_t offset, size_t bytes) {
  if (!detect_races) return;
  const Access now{current, clocks[current].at[current]};
  for (size_t i = offset / kWordBytes; i < (offset + bytes + kWordBytes - 1) / kWordBytes; ++i) {
    Word& word = word_at(i);
    if (!ordered(word.written)) report_race("read after write", word.written, i);
    bool known = false;
    for (Access& access : word.read) {
      if (access.thread != current) continue;
      access.time = now.time;
      known = true;
    }
    if (!known) word.read.push_back(now);
  }
}

// What this thread has done so far happens before what others do after acquiring `at`.
inline void release(Clock& at) {
  if (!detect_races) return;
  at.join(clocks[current]);
  ++clocks[current].at[current];
}

inline void acquire(const Clock& at) {
  if (detect_races) clocks[current].join(at);
}

}  // namespace emu
