// wgmma m64n176k16 of the kernel that holds a sample's outputs: as in wgmma.cuh, but a sample's first product need not
// find zeros.
#pragma once

#include "conv_group_norm_held_types.h"
#include "wgmma.cuh"

namespace tconv {
namespace cuda {
namespace held {

using namespace tconv::held;
static_assert(kN == 176, "the instruction's");

// clang-format off
#define TCONV_NAMES_176 TCONV_NAMES_128 ", " \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, " \
  "%84, %85, %86, %87"
// clang-format on
#define TCONV_MULTIPLY_176(TYPES)                                                                             \
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %90, 0;\nwgmma.mma_async.sync.aligned.m64n176k16.f32." TYPES \
               " {" TCONV_NAMES_176 "}, %88, %89, p, 1, 1, 0, 0;\n}"                                          \
               : TCONV_ACC_20(0), TCONV_ACC_20(20), TCONV_ACC_20(40), TCONV_ACC_20(60), TCONV_ACC_4(80),      \
                 TCONV_ACC_4(84)                                                                              \
               : "l"(a), "l"(b), "r"(onto))

// D = A * B, and onto what D is where `onto` is not 0.
template <bool kBFloat16>
__device__ __forceinline__ void multiply_onto(float (&d)[kN / 2], uint64_t a, uint64_t b, uint32_t onto) {
  if constexpr (kBFloat16) {
    TCONV_MULTIPLY_176("bf16.bf16");
  } else {
    TCONV_MULTIPLY_176("f16.f16");
  }
}

}  // namespace held
}  // namespace cuda
}  // namespace tconv
