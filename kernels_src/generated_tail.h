// Stand-in for what the generator writes: every kind of tail by itself, without steps.
#pragma once

#include "epilogue.h"

namespace tconv {

constexpr int kNumTails = 5;

template <int kNumber>
struct Tail {
  static constexpr TailKind kKind = static_cast<TailKind>(kNumber);
  template <typename Acc, typename Storage>
  static TCONV_HD Acc apply(Acc v, const EpilogueArgs<Storage>& args, int64_t channel) {
    (void)args, (void)channel;
    return v;
  }
};

}  // namespace tconv
