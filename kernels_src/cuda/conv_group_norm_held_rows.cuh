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
    if constexpr (kWords == 2) {
      asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(words[0]), "=r"(words[1]) : "r"(at) : "memory");
    } else {
#pragma unroll
      for (int i = 0; i < kWords; ++i) words[i] = load_word(at + i * kPairs * 4);
    }
  }
  __device__ __forceinline__ void store(uint32_t at) const {
    if constexpr (kWords == 2) {
      asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(at), "r"(words[0]), "r"(words[1]) : "memory");
    } else {
#pragma unroll
      for (int i = 0; i < kWords; ++i) store_word(at + i * kPairs * 4, words[i]);
    }
  }

  // In 24 bits: the fourth's in the lowest bytes of the other three.
  __device__ __forceinline__ void hold(const float (&values)[4]) {
    if constexpr (kWords == 2) {
      words[0] = pack_rounded<Storage>(values[0], values[1]);
      words[1] = pack_rounded<Storage>(values[2], values[3]);
    } else {
      const uint32_t last = __float_as_uint(values[3]);
      words[0] = __byte_perm(__float_as_uint(values[0]), last, 0x3215);
      words[1] = __byte_perm(__float_as_uint(values[1]), last, 0x3216);
      words[kWords - 1] = __byte_perm(__float_as_uint(values[2]), last, 0x3217);
    }
  }
  __device__ __forceinline__ void values(float (&to)[4]) const {
    if constexpr (kWords == 2) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Storage* const pair = reinterpret_cast<const Storage*>(&words[half]);
        to[2 * half] = static_cast<float>(pair[0]), to[2 * half + 1] = static_cast<float>(pair[1]);
      }
    } else {  // a value's lowest byte is another's, as good as any
#pragma unroll
      for (int i = 0; i < 3; ++i) to[i] = __uint_as_float(words[i % kWords]);
      to[3] = __uint_as_float(__byte_perm(__byte_perm(words[0], words[1], 0x0400), words[kWords - 1], 0x4210));
    }
  }
};

}  // namespace held
}  // namespace cuda
}  // namespace tconv
