// Outputs of twin columns where they do not lie in aligned pairs, as in rows of an odd number: neighbouring lanes store
// neighbouring columns one by one, so that what a warp stores at once lies together.
#pragma once

#include "conv_transpose_hopper_epilogue.cuh"
#ifdef TCONV_KEEPS_MASK
#include "conv_transpose_hopper_mask.cuh"
#endif

namespace tconv {
namespace cuda {
namespace hopper {

// A block of a warp's pixels, kPixels of them and twice the columns, in 16 channels: fragments j0 on, and from the
// buffer to memory. first_position: of the line; tile_out: the warp's first channel in image 0.
#ifdef TCONV_KEEPS_MASK
// kMasked: they are what the chain is given, and a mask is left.
template <int kPixels, int kFragments, int N, bool kMasked, typename Storage>
#else
template <int kPixels, int kFragments, int N, typename Storage>
#endif
__device__ __forceinline__ void store_odd_twins(const HopperArgs<Storage>& args, const TileCursor& at,
                                                const LineExtent<stacks(N)>& extent, int odd_cols, uint32_t buffer,
                                                uint32_t write_at, int j0, int first_position, Storage* tile_out,
                                                int channels_left, const float (&even)[N / 2],
                                                const float (&odd)[N / 2]) {
  constexpr int kColumns = 2 * kPixels, kAtOnce = 2, kChannels = 32 * kAtOnce / kColumns;  // of kAtOnce stores
  static_assert(kChannels >= 1 && kStoreChannels % kChannels == 0, "stores end with channels");
  int lane = threadIdx.x % 32;
  asm volatile("" : "+r"(lane));  // not earlier: places worked out ahead would not fit the registers
  Storage* to[kAtOnce];
  bool wanted[kAtOnce];
#pragma unroll
  for (int k = 0; k < kAtOnce; ++k) {
    const int place = lane + 32 * k, column = place % kColumns;
    int image, row, col;
    const bool exists = extent.pair_at(first_position + column / 2, &image, &row, &col) != 0;
    wanted[k] = exists && (column % 2 == 0 || col < odd_cols);
    to[k] = tile_out + args.out_offset(at.sample + image) + place / kColumns * args.out_stride_c +
            static_cast<int64_t>(row) * args.stride_h * args.out_w + 2 * col + column % 2;
  }
#ifdef TCONV_KEEPS_MASK
  int64_t at_output[kAtOnce];  // in place of two addresses
#pragma unroll
  for (int k = 0; k < kAtOnce; ++k) at_output[k] = to[k] - args.out;
#endif
  const uint32_t read_at = buffer + (lane / kColumns * kStorePitch + lane % kColumns) * 4;
  constexpr uint32_t kNext = (32 / kColumns * kStorePitch + 32 % kColumns) * 4;  // the second store's, behind
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kFragments; ++j) {
      const int from = 4 * (j0 + j) + 2 * half;
      asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(write_at + j * 64), "f"(even[from]), "f"(odd[from]),
                   "f"(even[from + 1]), "f"(odd[from + 1])
                   : "memory");
    }
    __syncwarp();
#pragma unroll
    for (int c = 0; c < kStoreChannels; c += kChannels) {
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        float value;
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(read_at + c * kStorePitch * 4 + k * kNext));
        const bool real = half * kStoreChannels + c + (lane + 32 * k) / kColumns < channels_left;
#ifdef TCONV_KEEPS_MASK
        if constexpr (kMasked) {
          if (wanted[k] && real) {
            args.out[at_output[k]] = to_storage<Storage>(chain_of(args, value));
            args.mask[at_output[k]] = condition_holds<Storage>(value);
          }
          at_output[k] += kChannels * args.out_stride_c;
          continue;
        }
#endif
        if (wanted[k] && real) *to[k] = static_cast<Storage>(value);
        to[k] += kChannels * args.out_stride_c;
      }
    }
  }
}

}  // namespace hopper
}  // namespace cuda
}  // namespace tconv
