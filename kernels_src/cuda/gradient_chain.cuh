// The chains whose gradients a library holds, and the choice among them.
#pragma once

#include "../elementwise/slopes.h"
#include "../generated_gradient.h"

namespace tconv {
namespace cuda {

// launch(the chain's number as a type), kUnsupportedKernel where there is none of that number.
template <int kIndex = 0, typename Launch>
int64_t with_chain(int64_t chain, const Launch& launch) {
  if constexpr (kIndex == kNumChains) {
    return kUnsupportedKernel;
  } else {
    if (chain == kIndex) return launch(std::integral_constant<int, kIndex>{});
    return with_chain<kIndex + 1>(chain, launch);
  }
}

}  // namespace cuda
}  // namespace tconv
