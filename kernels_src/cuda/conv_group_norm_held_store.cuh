// Stores of the kernel that holds a sample's outputs: those of the sample before, normalised on their way.
#pragma once

#include "conv_group_norm_held_args.cuh"
#include "conv_group_norm_held_rows.cuh"
#include "conv_transpose_sm90_epilogue.cuh"

namespace tconv {
namespace cuda {
namespace held {

// A consumer warp stores its 16 channels of a segment in rounds, in which a lane has one pair of pixels in all channels.
constexpr int kPairsOfRound = 32;
constexpr int kRounds = (kPairs + kPairsOfRound - 1) / kPairsOfRound;
constexpr int kFragmentsOfRound = 2 * kPairsOfRound / 8;  // of 8 pixels each

// Stores without branches.
template <typename Storage>
__device__ __forceinline__ void store_output_if(bool wanted, Storage* to, float value) {
  const Storage stored = static_cast<Storage>(value);
  if constexpr (sizeof(Storage) == 4) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %0, 0;\n@p st.global.cs.f32 [%1], %2;\n}" ::"r"(static_cast<unsigned>(wanted)), "l"(to),
                 "f"(stored)
                 : "memory");
  } else {
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %0, 0;\n@p st.global.cs.u16 [%1], %2;\n}" ::"r"(static_cast<unsigned>(wanted)), "l"(to),
                 "h"(*reinterpret_cast<const uint16_t*>(&stored))
                 : "memory");
  }
}
// Of a 16-bit type.
template <typename Storage>
__device__ __forceinline__ void store_pair_if(bool wanted, Storage* to, float first, float second) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %0, 0;\n@p st.global.cs.u32 [%1], %2;\n}" ::"r"(static_cast<unsigned>(wanted)), "l"(to),
               "r"(pack_rounded<Storage>(first, second))
               : "memory");
}

// One round of a sample: normalises and stores it row by row, two channels each. Nothing before turn 0.
// kPairStores: pairs of neighbouring outputs are aligned.
template <bool kPairStores, typename Storage>
struct StoreRound {
  uint32_t held, scales, shifts;
  int channels_left;  // from the round's first; 0: the lane stores nothing
  bool second;
  Storage* to;

  // Worked out anew for each round: that takes no registers while multiplying.
  __device__ __forceinline__ void begin(const Args<Storage>& args, const Shared& shared, int turn, int round) {
    const int thread = consumer_thread(), lane = thread % 32, warp = thread / 32, segment = warp / 4;
    const int channel = warp % 4 * 2 * kPartner;
    const bool has_pair = round * kPairsOfRound + lane < kPairs;  // in the last round 28 lanes have; the others read what they do not store
    const int pair = has_pair ? round * kPairsOfRound + lane : kPairs - 1;
    const int strip = static_cast<int>(load_word(shared.place + 4)), tile = static_cast<int>(load_word(shared.place + 8));
    const PairPlace at(args, strip, tile * kTilePixels + segment * kN + 2 * pair);
    channels_left = has_pair && at.first && turn >= 0 ? args.plan.out_channels - channel : 0;
    second = at.second;
    held = opaque(shared.held) + warp * kPartner * row_bytes(sizeof(Storage)) + pair * 4;
    scales = shared.scale_at(channel);
    shifts = shared.shift_at(segment, channel);
    const int plane = args.out_h * args.out_w;
    to = args.out + (static_cast<int64_t>(shared.sample(args, turn)) * args.plan.out_channels + channel) * plane +
         (at.row * args.out_w + strip * args.plan.strip_w + at.col);
  }

  // All words of the row are read when it returns.
  __device__ __forceinline__ void store_row(const Args<Storage>& args, int row) const {
    HeldPair<Storage> pair;
    pair.load(held + row * row_bytes(sizeof(Storage)));
    const float2 scale = load_row_pair(scales + row * 8), shift = load_row_pair(shifts + row * 8);
    float v[4];
    pair.values(v);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t channel = row + half * kPartner;
      const float a = half == 0 ? scale.x : scale.y, b = half == 0 ? shift.x : shift.y;
      const float left = fmaf(v[2 * half], a, b), right = fmaf(v[2 * half + 1], a, b);
      const bool wanted = static_cast<int>(channel) < channels_left;
      Storage* const at = reinterpret_cast<Storage*>(reinterpret_cast<char*>(to) + uint64_t{channel} * args.plane_bytes);
      if constexpr (kPairStores && sizeof(Storage) == 4) {
        if (wanted) sm90::store_pair(at, make_float2(left, right));  // a branch, or ptxas moves all stores to the end of the round
      } else if constexpr (kPairStores) {
        store_pair_if(wanted, at, left, right);
      } else {
        store_output_if(wanted, at, left);
        store_output_if(wanted && second, at + 1, right);
      }
    }
  }
};

// The first `rounds` of them, one after the other.
template <bool kPairStores, typename Storage>
__device__ __forceinline__ void store_rounds(const Args<Storage>& args, const Shared& shared, int turn, int rounds) {
#pragma unroll 1
  for (int round = 0; round < rounds; ++round) {
    StoreRound<kPairStores, Storage> stores;
    stores.begin(args, shared, turn, round);
#pragma unroll 2  // or each row waits for its own words
    for (int row = 0; row < kPartner; ++row) stores.store_row(args, row);
  }
}

}  // namespace held
}  // namespace cuda
}  // namespace tconv
