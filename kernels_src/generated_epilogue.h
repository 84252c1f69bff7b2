// Stand-in for what the generator writes: the identity epilogue.
#pragma once

namespace tconv {

struct Epilogue {
  static constexpr bool kEndsInGelu = false;

  template <typename Acc, typename Storage>
  static TCONV_HD Acc before_gelu(Acc v, const EpilogueArgs<Storage>& args, int64_t channel) {
    (void)args;
    (void)channel;
    return v;
  }

  template <typename Acc, typename Storage>
  static TCONV_HD Acc apply(Acc v, const EpilogueArgs<Storage>& args, int64_t channel) {
    return before_gelu<Acc, Storage>(v, args, channel);
  }
};

}  // namespace tconv
