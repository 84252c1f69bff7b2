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
  // Or, beside kernels of gradients: that of v, where `grad` is the result's; what belongs to operand i, of kVectors,
  // is added to sums[i].
  static constexpr int kVectors = 0;
  template <typename Acc, typename Storage>
  static TCONV_HD Acc gradient(Acc, Acc grad, const EpilogueArgs<Storage>&, int64_t, Acc*) {
    return grad;
  }
};

}  // namespace tconv
