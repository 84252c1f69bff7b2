// Stores of the kernel that holds a sample's outputs: those of the sample before, normalised on their way.
#pragma once

#include "conv_group_norm_held_args.cuh"
#include "conv_transpose_sm90_epilogue.cuh"

namespace tconv {
namespace cuda {
namespace held {

// A consumer warp stores its 16 channels of a segment in rounds, in which a lane has one pair of pixels in all channels.
constexpr int kPairsOfRound = 32;
constexpr int kRounds = (kPairs + kPairsOfRound - 1) / kPairsOfRound;
constexpr int kFragmentsOfRound = 2 * kPairsOfRound / 8;  // of 8 pixels each

// One round of a sample: normalises and stores it row by row, two channels each. Nothing before turn 0.
// kPairStores: pairs of neighbouring outputs are aligned.
template <bool kPairStores, typename Storage>
struct StoreRound {
  uint32_t held, affine;
  int channels_left;  // 0: the lane stores nothing
  bool second;
  int plane;
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
    held = shared.held_at(warp, pair);
    affine = shared.affine_at(channel);
    plane = opaque(args.out_h * args.out_w);
    to = args.out + (static_cast<int64_t>(shared.sample(args, turn)) * args.plan.out_channels + channel) * plane +
         (at.row * args.out_w + strip * args.plan.strip_w + at.col);
  }

  // All words of the row are read when it returns.
  __device__ __forceinline__ void store_row(int row) const {
    const AffinePair affines = load_affines(affine + row * kAffinePairBytes);
    const uint32_t thirds = load_word(held + row * kRowBytes + 2 * kPairs * 4);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t high_word = load_word(held + row * kRowBytes + half * kPairs * 4);
      // The fourth byte is a copy of the third, as good as any.
      const float a = __uint_as_float(__byte_perm(thirds, high_word, half == 0 ? 0x5400 : 0x5422));
      const float b = __uint_as_float(__byte_perm(thirds, high_word, half == 0 ? 0x7611 : 0x7633));
      const float2 values =
          make_float2(fmaf(a, affines.scale[half], affines.shift[half]), fmaf(b, affines.scale[half], affines.shift[half]));
      Storage* const out = to + (row + half * kPartner) * plane;
      if (row + half * kPartner < channels_left) {
        if constexpr (kPairStores) {
          sm90::store_pair(out, values);
        } else {
          out[0] = static_cast<Storage>(values.x);
          if (second) out[1] = static_cast<Storage>(values.y);
        }
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
    for (int row = 0; row < kPartner; ++row) stores.store_row(row);
  }
}

}  // namespace held
}  // namespace cuda
}  // namespace tconv
