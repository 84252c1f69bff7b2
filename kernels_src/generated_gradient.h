// Stand-in for what the generator writes: the chains of element-wise operations whose gradients one library holds, here
// the identity alone.
//   value<Storage>(v): the chain of v, in its type
//   gradient<Storage>(v, outer): of v, where outer(value) is the gradient of the chain's value
#pragma once

namespace tconv {

constexpr int kNumChains = 1;

template <int kIndex>
struct Chain;

template <>
struct Chain<0> {
  template <typename Storage, typename Acc>
  static TCONV_HD Acc value(Acc v) {
    return v;
  }
  template <typename Storage, typename Acc, typename Outer>
  static TCONV_HD Acc gradient(Acc v, const Outer& outer) {
    return outer(v);
  }
};

}  // namespace tconv
