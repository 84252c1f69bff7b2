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

#ifdef TCONV_CHAINS_READ_TENSORS
// The same for chains that read no tensors of the value's shape; others count as none.
template <typename Launch>
int64_t with_chain_of_vectors(int64_t chain, const Launch& launch) {
  return with_chain(chain, [&](auto index) -> int64_t {
    if constexpr (Chain<decltype(index)::value>::kTensors == 0)
      return launch(index);
    else
      return kUnsupportedKernel;
  });
}
#endif

}  // namespace cuda
}  // namespace tconv
