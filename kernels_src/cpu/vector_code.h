// Run-time choice of the instruction set. Loops are plain C++; the compiler vectorises each twice, once for the
// baseline of the architecture and once for AVX2 + FMA, so that one cached library runs on any machine.
#pragma once

// Changes no value, only whether floating-point exception flags are kept: with them, GCC would not vectorise the
// selections in vector_math.h. Before every other header, because GCC inlines only between functions that agree on it.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-trapping-math", "no-math-errno")
#endif

#include "../common.h"

#if defined(__x86_64__)
#define TCONV_HAVE_AVX2 1
#define TCONV_TARGET_AVX2 __attribute__((target("avx2,fma")))
#else
#define TCONV_HAVE_AVX2 0
#endif

#define TCONV_INLINE inline __attribute__((always_inline))

namespace tconv {
namespace cpu {

enum class Isa { kBaseline, kAvx2 };

inline Isa pick_isa([[maybe_unused]] int64_t kernel_choice) {
#if TCONV_HAVE_AVX2
  if (kernel_choice == kAuto && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Isa::kAvx2;
#endif
  return Isa::kBaseline;
}

#if TCONV_HAVE_AVX2
template <typename Body>
TCONV_TARGET_AVX2 inline void call_for_avx2(const Body& body) {
  body();
}
#endif

// Calls an always_inline lambda, compiled for `isa`.
template <typename Body>
TCONV_INLINE void vectorised([[maybe_unused]] Isa isa, const Body& body) {
#if TCONV_HAVE_AVX2
  if (isa == Isa::kAvx2) return call_for_avx2(body);
#endif
  body();
}

}  // namespace cpu
}  // namespace tconv
