// Stores of the kernel that holds a sample's outputs: those of the sample before, normalised on their way, a few at a time while the
// tensor cores multiply.
#pragma once

#include "conv_group_norm_held_args.cuh"
#include "conv_transpose_sm90_epilogue.cuh"

namespace tconv {
namespace cuda {
namespace held {

// A consumer warp's outputs of one sample on their way to memory: 16 channels of a segment, two of them in a step.
template <typename Storage>
struct StoreWalk {
  static constexpr int kRounds = (kPairs + 31) / 32;  // a lane takes every 32nd pair
  uint32_t offsets[kRounds];  // of the lane's pairs in an output plane, bytes
  uint32_t exist = 0;    // bits 2r and 2r + 1: are the pixels of pair r outputs?
  int sample = 0;
  int row = kPartner;    // of kPartner: all are stored

  __device__ __forceinline__ StoreWalk(const Args<Storage>& args, const Place& place, int segment) {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int pair = round * 32 + threadIdx.x % 32;
      const PairPlace at(args, place, place.tile * kTilePixels + segment * kN + 2 * pair);
      offsets[round] = (at.row * args.out_w + place.strip * args.plan.tile_w + at.col) * static_cast<uint32_t>(sizeof(Storage));
      if (pair < kPairs) exist |= ((at.first ? 1u : 0u) | (at.second ? 2u : 0u)) << 2 * round;
    }
  }

  __device__ __forceinline__ bool done() const { return row == kPartner; }

  __device__ __forceinline__ void begin(int of_sample) {
    sample = of_sample;
    row = 0;
  }

  __device__ __forceinline__ void step(const Args<Storage>& args, const Shared& shared) {
    const int thread = opaque(threadIdx.x), lane = thread % 32, warp = thread / 32 % 4, segment = thread / 128;
    const int plane = args.out_h * args.out_w, channel = warp * 2 * kPartner + row;
    const uint32_t high = shared.high_at(segment, channel, lane), third = shared.third_at(segment, warp * kPartner + row, lane);
    const Affine affines[2] = {load_affine(shared.affine + channel * 8), load_affine(shared.affine + (channel + kPartner) * 8)};
    uint32_t words[kRounds][3];
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const uint32_t behind = (round + 1) * 32 > kPairs && round * 32 + lane >= kPairs ? 0 : round * 128;
      words[round][0] = load_word(high + behind);
      words[round][1] = load_word(high + behind + kPartner * kPairs * 4);
      words[round][2] = load_word(third + behind);
    }
    char* to = reinterpret_cast<char*>(args.out + (static_cast<int64_t>(sample) * args.plan.out_channels + channel) * plane);
#pragma unroll
    for (int half = 0; half < 2; ++half, to += kPartner * plane * static_cast<int64_t>(sizeof(Storage))) {
      const uint32_t mine = channel + half * kPartner < args.plan.out_channels ? exist : 0;
      float2 values[kRounds];
#pragma unroll
      for (int round = 0; round < kRounds; ++round) {
        // The fourth byte is a copy of the third, as good as any.
        const uint32_t high_word = words[round][half], thirds = words[round][2];
        const uint32_t first = __byte_perm(thirds, high_word, half == 0 ? 0x5400 : 0x5422);
        const uint32_t second = __byte_perm(thirds, high_word, half == 0 ? 0x7611 : 0x7633);
        values[round] = make_float2(fmaf(__uint_as_float(first), affines[half].scale, affines[half].shift),
                                    fmaf(__uint_as_float(second), affines[half].scale, affines[half].shift));
      }
      if (args.pair_stores != 0) {
#pragma unroll
        for (int round = 0; round < kRounds; ++round)
          if ((mine >> 2 * round & 1) != 0) sm90::store_pair(reinterpret_cast<Storage*>(to + offsets[round]), values[round]);
      } else {
#pragma unroll
        for (int round = 0; round < kRounds; ++round) {
          Storage* const at = reinterpret_cast<Storage*>(to + offsets[round]);
          if ((mine >> 2 * round & 1) != 0) at[0] = static_cast<Storage>(values[round].x);
          if ((mine >> 2 * round & 2) != 0) at[1] = static_cast<Storage>(values[round].y);
        }
      }
    }
    ++row;
  }
};

}  // namespace held
}  // namespace cuda
}  // namespace tconv
