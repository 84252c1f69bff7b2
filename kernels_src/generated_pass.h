// Stand-in for what the generator writes: every kind of pass by itself, without steps.
#pragma once

#include "epilogue.h"

namespace tconv {

constexpr int kNumPasses = 4;

template <int kNumber>
struct Pass {
  static constexpr PassKind kKind = static_cast<PassKind>(kNumber);
  template <typename Acc, typename Storage>
  static TCONV_HD Acc apply(Acc v, const EpilogueArgs<Storage>& args, int64_t channel) {
    (void)args, (void)channel;
    return v;
  }
};

}  // namespace tconv
