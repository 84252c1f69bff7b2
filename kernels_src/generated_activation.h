// Stand-in for what the generator writes: the activation between BatchNorm and max-pool, here tanh.
// It must not decrease anywhere (tanh, relu, sigmoid): the kernels take the maximum of a window first.
#pragma once

#include "elementwise.h"

namespace tconv {

struct Activation {
  template <typename Acc>
  static TCONV_HD Acc apply(Acc v) {
    return elementwise::tanh_(v);
  }
};

}  // namespace tconv
