// wgmma m64nNk16: D[64 x N] += A[64 x 16] * B[16 x N], fp16 or bf16 operands from shared memory, fp32 accumulators.
// A thread of warp w, lane l holds rows 16w + l/4 (values 4j, 4j+1) and 8 below (4j+2, 4j+3) at columns
// 8j + 2(l%4) + {0, 1}. (Source: PTX ISA, register fragments of wgmma.mma_async.)
#pragma once

#include <cstdint>

namespace tconv {
namespace cuda {
namespace hopper {

template <int N>
struct Wgmma;

// Inline assembly wants every accumulator named: operands and constraints in blocks of four.
#define TCONV_ACC_4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define TCONV_ACC_20(i) TCONV_ACC_4(i), TCONV_ACC_4(i + 4), TCONV_ACC_4(i + 8), TCONV_ACC_4(i + 12), TCONV_ACC_4(i + 16)
// clang-format off
#define TCONV_NAMES_64 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, " \
  "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TCONV_NAMES_104 TCONV_NAMES_64 ", " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51"
#define TCONV_NAMES_128 TCONV_NAMES_104 ", " \
  "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define TCONV_NAMES_184 TCONV_NAMES_128 ", " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, " \
  "%84, %85, %86, %87, %88, %89, %90, %91"
#define TCONV_NAMES_216 TCONV_NAMES_184 ", " \
  "%92, %93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107"
#define TCONV_NAMES_256 TCONV_NAMES_216 ", " \
  "%108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, " \
  "%124, %125, %126, %127"
// clang-format on

// MAJOR: "0, 0" for operands with K as the fastest index, "1, 1" for those with M and N as it.
#define TCONV_DEFINE_WGMMA(STRUCT, MAJOR, N, NAMES, A, B, ...)                                         \
  template <>                                                                                          \
  struct STRUCT<N> {                                                                                   \
    template <bool kBFloat16>                                                                          \
    static __device__ __forceinline__ void multiply(float (&d)[N / 2], uint64_t a, uint64_t b) {       \
      if constexpr (kBFloat16) {                                                                       \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" NAMES "}, " A ", " B \
                     ", 1, 1, 1, " MAJOR ";"                                                           \
                     : __VA_ARGS__                                                                     \
                     : "l"(a), "l"(b));                                                                \
      } else {                                                                                         \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.f16.f16 {" NAMES "}, " A ", " B   \
                     ", 1, 1, 1, " MAJOR ";"                                                           \
                     : __VA_ARGS__                                                                     \
                     : "l"(a), "l"(b));                                                                \
      }                                                                                                \
    }                                                                                                  \
  };
TCONV_DEFINE_WGMMA(Wgmma, "0, 0", 64, TCONV_NAMES_64, "%32", "%33", TCONV_ACC_20(0), TCONV_ACC_4(20), TCONV_ACC_4(24),
                   TCONV_ACC_4(28))
TCONV_DEFINE_WGMMA(Wgmma, "0, 0", 104, TCONV_NAMES_104, "%52", "%53", TCONV_ACC_20(0), TCONV_ACC_20(20),
                   TCONV_ACC_4(40), TCONV_ACC_4(44), TCONV_ACC_4(48))
TCONV_DEFINE_WGMMA(Wgmma, "0, 0", 128, TCONV_NAMES_128, "%64", "%65", TCONV_ACC_20(0), TCONV_ACC_20(20),
                   TCONV_ACC_20(40), TCONV_ACC_4(60))
TCONV_DEFINE_WGMMA(Wgmma, "0, 0", 184, TCONV_NAMES_184, "%92", "%93", TCONV_ACC_20(0), TCONV_ACC_20(20),
                   TCONV_ACC_20(40), TCONV_ACC_20(60), TCONV_ACC_4(80), TCONV_ACC_4(84), TCONV_ACC_4(88))
TCONV_DEFINE_WGMMA(Wgmma, "0, 0", 216, TCONV_NAMES_216, "%108", "%109", TCONV_ACC_20(0), TCONV_ACC_20(20),
                   TCONV_ACC_20(40), TCONV_ACC_20(60), TCONV_ACC_20(80), TCONV_ACC_4(100), TCONV_ACC_4(104))
TCONV_DEFINE_WGMMA(Wgmma, "0, 0", 256, TCONV_NAMES_256, "%128", "%129", TCONV_ACC_20(0), TCONV_ACC_20(20),
                   TCONV_ACC_20(40), TCONV_ACC_20(60), TCONV_ACC_20(80), TCONV_ACC_20(100), TCONV_ACC_4(120),
                   TCONV_ACC_4(124))

}  // namespace hopper
}  // namespace cuda
}  // namespace tconv
