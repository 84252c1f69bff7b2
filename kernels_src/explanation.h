// What a call tells of itself if it is asked to: the kernel that it takes, and why it takes none of the faster ones.
// Host only.
#pragma once

#include "reasons.h"

namespace tconv {

struct Explanation {
  static constexpr int kMost = 8;
  struct RuledOut {
    const char* kernel;
    const char* why;
  };

  const char* kernel = nullptr;  // null where there is nothing to compute
  const char* way = "";          // what is done with its outputs, where a pattern has several ways
  RuledOut ruled_out[kMost];     // kernels that are faster, where they run
  int num_ruled_out = 0;
  const char* failure = nullptr;  // why no kernel may take the call

  // `why` null: the kernel was not ruled out.
  void rule_out(const char* name, const char* why) {
    if (why != nullptr && num_ruled_out < kMost) ruled_out[num_ruled_out++] = {name, why};
  }
  void fail(const char* why) {
    if (failure == nullptr) failure = why;
  }
};

}  // namespace tconv
