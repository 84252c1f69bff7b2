// Stand-in for what the generator writes: the chains of element-wise operations whose gradients one library holds, here
// the identity alone.
//   value<Storage>(v, args, channel): the chain of v, in its type; args.channel_vectors[i][channel]: its operands
//   gradient<Storage>(v, args, channel, outer, sums): of v, where outer(value) is the gradient of the chain's value;
//   the one of operand i, of kVectors, is added to sums[i]
#pragma once

namespace tconv {

constexpr int kNumChains = 1;

template <int kIndex>
struct Chain;

template <>
struct Chain<0> {
  static constexpr int kVectors = 0;
  template <typename Storage, typename Acc, typename Operands>
  static TCONV_HD Acc value(Acc v, const Operands&, int64_t) {
    return v;
  }
  template <typename Storage, typename Acc, typename Operands, typename Outer>
  static TCONV_HD Acc gradient(Acc v, const Operands&, int64_t, const Outer& outer, Acc*) {
    return outer(v);
  }
};

}  // namespace tconv
