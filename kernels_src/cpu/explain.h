// What a convolution on a CPU says of itself.
#pragma once

#include "../call.h"
#include "vector_code.h"

namespace tconv {
namespace cpu {

// `no_tiles`: null where the vectorised kernel runs, or why it does not.
inline void explain(const ConvCall& call, const char* no_tiles, CpuFeatures features = cpu_features()) {
  Explanation* const to = call.explanation;
  if (to == nullptr) return;
  const Isa isa = pick_isa(call.kernel_choice, features);
  to->kernel = "plain";
  if (no_tiles == nullptr) to->kernel = isa == Isa::kAvx512 ? "avx512" : isa == Isa::kAvx2 ? "avx2" : "portable";
  const auto why_not = [&](Isa wider, bool allowed, const char* not_here) -> const char* {
    if (no_tiles != nullptr) return no_tiles;
    if (isa >= wider) return nullptr;
    return allowed ? not_here : reason::kForced;
  };
  const bool free = call.kernel_choice == kAuto;
  to->rule_out("avx512", why_not(Isa::kAvx512, free, reason::kNoAvx512));
  to->rule_out("avx2", why_not(Isa::kAvx2, free || call.kernel_choice == kAtMostAvx2, reason::kNoAvx2));
  to->rule_out("portable", no_tiles);
}

}  // namespace cpu
}  // namespace tconv
