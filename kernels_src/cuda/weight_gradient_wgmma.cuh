// wgmma m64nNk16 with pixels as K: D[64 x N] += A[64 x 16] * B[16 x N] of fp16 or bf16 operands that both lie in shared
// memory as pixels of 64 channels, 128 bytes in the 128-byte swizzle, and are transposed on the way ("MN-major"). N is
// one to four blocks of 64 columns, each at the same distance from the one before, the leading byte offset, which may
// be any number of pixels: neighbouring taps are one product. Checked on an H200 for starts and distances of any number
// of pixels. Accumulators are those of wgmma.mma_async: conv_transpose's Wgmma says where they lie.
#pragma once

#include "wgmma.cuh"

namespace tconv {
namespace cuda {
namespace pixels {

#ifdef TCONV_WALKS_DEPTH
// The descriptor of narrow pixels, of 64 bytes.
__device__ __forceinline__ uint64_t narrow_pixels_descriptor(uint32_t low) {
  constexpr uint32_t kSwizzle64B = 2u << 30;
  constexpr uint32_t kStrideByteOffset = 8 * 64 >> 4;
  return static_cast<uint64_t>(kSwizzle64B | kStrideByteOffset) << 32 | low;
}

#endif
template <int N>
struct PixelWgmma;

#define TCONV_NAMES_192 TCONV_NAMES_184 ", %92, %93, %94, %95"

TCONV_DEFINE_WGMMA(PixelWgmma, "1, 1", 64, TCONV_NAMES_64, "%32", "%33", TCONV_ACC_20(0), TCONV_ACC_4(20),
                   TCONV_ACC_4(24), TCONV_ACC_4(28))
TCONV_DEFINE_WGMMA(PixelWgmma, "1, 1", 128, TCONV_NAMES_128, "%64", "%65", TCONV_ACC_20(0), TCONV_ACC_20(20),
                   TCONV_ACC_20(40), TCONV_ACC_4(60))
TCONV_DEFINE_WGMMA(PixelWgmma, "1, 1", 192, TCONV_NAMES_192, "%96", "%97", TCONV_ACC_20(0), TCONV_ACC_20(20),
                   TCONV_ACC_20(40), TCONV_ACC_20(60), TCONV_ACC_4(80), TCONV_ACC_4(84), TCONV_ACC_4(88),
                   TCONV_ACC_4(92))
TCONV_DEFINE_WGMMA(PixelWgmma, "1, 1", 256, TCONV_NAMES_256, "%128", "%129", TCONV_ACC_20(0), TCONV_ACC_20(20),
                   TCONV_ACC_20(40), TCONV_ACC_20(60), TCONV_ACC_20(80), TCONV_ACC_20(100), TCONV_ACC_4(120),
                   TCONV_ACC_4(124))

#ifdef TCONV_WALKS_DEPTH
// Of pixels of 32 channels, 64 bytes in the 64-byte swizzle: blocks of 32 columns.
// clang-format off
#define TCONV_NAMES_32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define TCONV_NAMES_96 TCONV_NAMES_64 ", " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
// clang-format on
TCONV_DEFINE_WGMMA(PixelWgmma, "1, 1", 32, TCONV_NAMES_32, "%16", "%17", TCONV_ACC_4(0), TCONV_ACC_4(4), TCONV_ACC_4(8),
                   TCONV_ACC_4(12))
TCONV_DEFINE_WGMMA(PixelWgmma, "1, 1", 96, TCONV_NAMES_96, "%48", "%49", TCONV_ACC_20(0), TCONV_ACC_20(20),
                   TCONV_ACC_4(40), TCONV_ACC_4(44))
#endif

}  // namespace pixels
}  // namespace cuda
}  // namespace tconv
