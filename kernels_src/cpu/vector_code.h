// Run-time choice of the instruction set. Loops are plain C++; the compiler vectorises each for the baseline of the
// architecture and, on x86-64, for AVX2 + FMA and for AVX-512, so that one cached library runs on any machine.
#pragma once

// Changes no value, only whether floating-point exception flags are kept: with them, GCC would not vectorise the
// selections in vector_math.h. Before every other header, because GCC inlines only between functions that agree on it.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-trapping-math", "no-math-errno")
#endif

#include "../common.h"

#if defined(__x86_64__)
#define TCONV_HAVE_X86_VECTORS 1
#define TCONV_TARGET_AVX2 __attribute__((target("avx2,fma")))
#if defined(__clang__)
#define TCONV_TARGET_AVX512 __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,fma")))
#else  // which would otherwise keep to 256 bits where it vectorises loops
#define TCONV_TARGET_AVX512 __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,fma,prefer-vector-width=512")))
#endif
#else
#define TCONV_HAVE_X86_VECTORS 0
#endif

#define TCONV_INLINE inline __attribute__((always_inline))

namespace tconv {
namespace cpu {

enum class Isa { kBaseline, kAvx2, kAvx512 };

// What the machine has of the instructions that Isa's names stand for.
struct CpuFeatures {
  bool avx2, avx512;
};

inline CpuFeatures cpu_features() {
#if TCONV_HAVE_X86_VECTORS
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return {avx2, avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                    __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")};
#else
  return {false, false};
#endif
}

// The widest that the machine has and `kernel_choice` allows.
inline Isa pick_isa(int64_t kernel_choice, CpuFeatures features = cpu_features()) {
  if (kernel_choice == kAuto && features.avx512) return Isa::kAvx512;
  if ((kernel_choice == kAuto || kernel_choice == kAtMostAvx2) && features.avx2) return Isa::kAvx2;
  return Isa::kBaseline;
}

#if TCONV_HAVE_X86_VECTORS
template <typename Body>
TCONV_TARGET_AVX2 inline void call_for_avx2(const Body& body) {
  body();
}

template <typename Body>
TCONV_TARGET_AVX512 inline void call_for_avx512(const Body& body) {
  body();
}
#endif

// Calls an always_inline lambda that works on values of type T, compiled for `isa`; double's is compiled once, for the
// baseline: it is there to be right, and each further copy costs build time.
template <typename T, typename Body>
TCONV_INLINE void vectorised([[maybe_unused]] Isa isa, const Body& body) {
#if TCONV_HAVE_X86_VECTORS
  if constexpr (sizeof(T) <= sizeof(float)) {
    if (isa == Isa::kAvx512) return call_for_avx512(body);
    if (isa == Isa::kAvx2) return call_for_avx2(body);
  }
#endif
  body();
}

}  // namespace cpu
}  // namespace tconv
