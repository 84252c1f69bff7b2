// The operator's arguments as PyTorch hands them over, and its results.
#pragma once

#include "arguments.h"

namespace tconv {
namespace binding {

// Takes arguments in the schema's order. All of them must be taken before anything may throw: each owns what it holds.
class Stack {
 public:
  explicit Stack(StableIValue* stack) : stack_(stack), next_(stack) {}

  Tensor tensor() { return torch::stable::detail::to<Tensor>(*next_++); }
  OptionalTensor optional_tensor() { return torch::stable::detail::to<OptionalTensor>(*next_++); }
  int64_t integer() { return torch::stable::detail::to<int64_t>(*next_++); }
  double number() { return torch::stable::detail::to<double>(*next_++); }
  bool boolean() { return torch::stable::detail::to<bool>(*next_++); }

  Pair pair() {
    const int64_t h = integer();
    return {h, integer()};
  }

  template <typename... Results>
  void give(const Results&... results) {
    StableIValue* next = stack_;
    ((*next++ = torch::stable::detail::from(results)), ...);
  }

 private:
  StableIValue* stack_;
  StableIValue* next_;
};

}  // namespace binding
}  // namespace tconv
