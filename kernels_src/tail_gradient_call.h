// Argument block of the library of the gradients through tails, filled by its operators
// (binding/operator_tail_gradient.cpp).
#pragma once

#include "tail_call.h"

namespace tconv {

// grad_value: the gradient of the tail's value, from `grad`, that of its result; all contiguous. The tail's own
// `result` is neither read nor written.
struct TailGradientCall : TailCall {
  const void* grad;
  void* grad_value;
  // Sums that are wanted, one bit each: of norms the gradients of weight and bias, of the other kinds those of the
  // steps' operands by index. [bits][row, or channels]
  int64_t wanted;
  void* sums;

  bool wants(int index) const { return (wanted >> index & 1) != 0; }
  int num_sums() const {
    int count = 0;
    while (wanted >> count != 0) ++count;
    return count;
  }
};

}  // namespace tconv
