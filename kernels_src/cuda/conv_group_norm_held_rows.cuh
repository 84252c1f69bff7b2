// What the kernel that holds a sample's outputs keeps in shared memory of a pair of pixels in a row's two channels.
#pragma once

#include "conv_group_norm_held_args.cuh"

namespace tconv {
namespace cuda {
namespace held {

// values[0], values[1]: of the first channel; values[2], values[3]: of the other.
template <typename Storage>
struct HeldPair {
  static constexpr int kWords = held_words(sizeof(Storage));
  uint32_t words[kWords];

  __device__ __forceinline__ void load(uint32_t at) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = load_word(at + i * kPairs * 4);
  }
  __device__ __forceinline__ void store(uint32_t at) const {
#pragma unroll
    for (int i = 0; i < kWords; ++i) store_word(at + i * kPairs * 4, words[i]);
  }

  __device__ __forceinline__ void hold(const float (&values)[4]) {
    if constexpr (kWords == 2) {
      words[0] = pack_rounded<Storage>(values[0], values[1]);
      words[1] = pack_rounded<Storage>(values[2], values[3]);
    } else {
      uint32_t bits[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) bits[i] = __float_as_uint(values[i]);
      words[0] = __byte_perm(bits[0], bits[1], 0x7632);
      words[1] = __byte_perm(bits[2], bits[3], 0x7632);
      words[kWords - 1] = __byte_perm(__byte_perm(bits[0], bits[1], 0x0051), __byte_perm(bits[2], bits[3], 0x0051), 0x5410);
    }
  }
  __device__ __forceinline__ void values(float (&to)[4]) const {
    if constexpr (kWords == 2) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Storage* const pair = reinterpret_cast<const Storage*>(&words[half]);
        to[2 * half] = static_cast<float>(pair[0]), to[2 * half + 1] = static_cast<float>(pair[1]);
      }
    } else {  // the fourth byte is a copy of the third, as good as any
      const uint32_t thirds = words[kWords - 1];
      to[0] = __uint_as_float(__byte_perm(thirds, words[0], 0x5400));
      to[1] = __uint_as_float(__byte_perm(thirds, words[0], 0x7611));
      to[2] = __uint_as_float(__byte_perm(thirds, words[1], 0x5422));
      to[3] = __uint_as_float(__byte_perm(thirds, words[1], 0x7633));
    }
  }
};

}  // namespace held
}  // namespace cuda
}  // namespace tconv
