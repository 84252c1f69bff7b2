// Stores of the kernel that holds a sample's outputs: those of the sample before, normalised on their way.
#pragma once

#include "conv_group_norm_held_args.cuh"
#include "conv_group_norm_held_rows.cuh"
#include "conv_transpose_hopper_epilogue.cuh"

namespace tconv {
namespace cuda {
namespace held {

// A consumer warp stores its 16 channels of a segment in rounds, in which a lane has one pair of pixels in all channels
// of a class.
constexpr int kPairsOfRound = 32;
constexpr int kRounds = (kPairs + kPairsOfRound - 1) / kPairsOfRound;
constexpr int kFragmentsOfRound = 2 * kPairsOfRound / 8;  // of 8 pixels each
static_assert(kRounds == 3, "two splits");

// A sector of memory that is written in parts costs several whole ones: memory takes a sample of 2/19 in 8,400 cycles
// instead of 11,200 where rounds end with sectors. Where those begin differs from channel to channel: a class is the
// rows of two channels in which they begin alike (with planes of an odd number of pairs nearly so). Of fp32 alone: in
// 16 bits what that takes costs more than it spares.
constexpr int kSectorBytes = 32;
template <bool kPairStores, typename Storage>
struct Rounds {
  static constexpr bool kWholeSectors = kPairStores && sizeof(Storage) == 4;
  static constexpr int kPairsOfSector = kSectorBytes / (2 * sizeof(Storage));
  static constexpr int kClasses = kWholeSectors ? kRowClasses : 1;
  static constexpr int kRowsOfClass = kPartner / kClasses;  // row_class, row_class + kClasses, ...
  // The first pair of the second round, and of the third: at least.
  static constexpr int kSecond = kWholeSectors ? kPairsOfRound - kPairsOfSector + 1 : kPairsOfRound;
  static constexpr int kThird = kWholeSectors ? kPairs - kPairsOfRound - kPairsOfSector : 2 * kPairsOfRound;
};

// Where rounds end, a byte for each of two. By some threads of the block.
template <typename Storage>
__device__ __forceinline__ void fill_splits(const Args<Storage>& args, const Shared& shared, const Place& place,
                                            int thread) {
  using Of = Rounds<true, Storage>;
  if (thread >= kSegments * kRowClasses) return;
  const int segment = thread / kRowClasses, channel = thread % kRowClasses;
  const int columns = args.plan.columns(place.strip, args.out_w);
  const auto at = [&](int pair) {
    return PairPlace(args, columns, place.tile * kTilePixels + segment * kN + 2 * pair);
  };
  const auto begins_sector = [&](const PairPlace& pair) {
    const int64_t plane = int64_t{place.first_sample} * args.plan.out_channels + channel;
    const Storage* const to =
        args.out + plane * args.out_h * args.out_w + pair.row * args.out_w + place.strip * args.plan.strip_w + pair.col;
    return reinterpret_cast<uintptr_t>(to) % kSectorBytes == 0;
  };
  int end = kPairs;  // of what is stored
  while (end > 0 && !at(end - 1).first) --end;
  // The last pair from `least` on before which no sector is cut, or `most`.
  const auto split = [&](int least, int most) {
    for (int pair = most; pair >= least; --pair)
      if (!at(pair).first || !at(pair - 1).first || begins_sector(at(pair))) return pair;
    return most;
  };
  const int second = split(Of::kSecond, kPairsOfRound);
  const int third = split(max(Of::kThird, end - kPairsOfRound), second + kPairsOfRound);
  store_word(shared.splits + thread * 4, second | third << 8);
}

// Stores without branches.
template <typename Storage>
__device__ __forceinline__ void store_output_if(bool wanted, Storage* to, float value) {
  const Storage stored = static_cast<Storage>(value);
  if constexpr (sizeof(Storage) == 4) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %0, 0;\n@p st.global.cs.f32 [%1], %2;\n}" ::"r"(
                     static_cast<unsigned>(wanted)),
                 "l"(to), "f"(stored)
                 : "memory");
  } else {
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %0, 0;\n@p st.global.cs.u16 [%1], %2;\n}" ::"r"(
                     static_cast<unsigned>(wanted)),
                 "l"(to), "h"(*reinterpret_cast<const uint16_t*>(&stored))
                 : "memory");
  }
}
// Of a 16-bit type.
template <typename Storage>
__device__ __forceinline__ void store_pair_if(bool wanted, Storage* to, float first, float second) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p, %0, 0;\n@p st.global.cs.u32 [%1], %2;\n}" ::"r"(static_cast<unsigned>(wanted)),
      "l"(to), "r"(pack_rounded<Storage>(first, second))
      : "memory");
}

// What the stores of a warp's channels in a sample share, the same in all lanes. Nothing before turn 0.
template <typename Storage>
struct WarpStores {
  // The segment's first; of the strip, 0 if there is nothing to store; from the warp's first on.
  int position, columns, channels;
  uint32_t held, affine, splits;
  Storage* to;  // row 0, column 0 of the strip in the warp's first channel

  __device__ __forceinline__ WarpStores(const Args<Storage>& args, const Shared& shared, int turn) {
    const int warp = static_cast<int>(hopper::uniform(consumer_thread() / 32)), segment = warp / 4;
    const int strip = static_cast<int>(hopper::uniform(load_word(shared.place + 4)));
    const int tile = static_cast<int>(hopper::uniform(load_word(shared.place + 8)));
    const int channel = warp % 4 * 2 * kPartner;
    channels = args.plan.out_channels - channel;
    columns = turn >= 0 && channels > 0 ? args.plan.columns(strip, args.out_w) : 0;
    position = tile * kTilePixels + segment * kN;
    held = shared.held + warp * kPartner * row_bytes(sizeof(Storage));
    affine = shared.affine_at(segment, channel);
    splits = shared.splits + segment * kRowClasses * 4;
    const int64_t plane = static_cast<int64_t>(shared.sample(args, turn)) * args.plan.out_channels + channel;
    to = args.out + plane * (args.out_h * args.out_w) + strip * args.plan.strip_w;
  }
};

// One round of a sample in the rows of a class: normalises and stores them row by row, two channels each.
// kPairStores: pairs of neighbouring outputs are aligned.
template <bool kPairStores, typename Storage>
struct StoreRound {
  using Of = Rounds<kPairStores, Storage>;
  const WarpStores<Storage>& warp;
  uint32_t held;
  bool first, second;
  Storage* to;

  __device__ __forceinline__ explicit StoreRound(const WarpStores<Storage>& w) : warp(w) {}

  __device__ __forceinline__ void begin(const Args<Storage>& args, int round, int row_class) {
    const int lane = threadIdx.x % 32;
    int from = round * kPairsOfRound, end = kPairs;
    if constexpr (Of::kWholeSectors) {
      const uint32_t splits = load_word(warp.splits + row_class * 4);
      from = round == 0 ? 0 : round == 1 ? splits & 0xFF : splits >> 8;
      end = round == 0 ? splits & 0xFF : round == 1 ? splits >> 8 : kPairs;
    }
    const int pair = min(from + lane, kPairs - 1);  // the others read what they do not store
    const PairPlace at(args, warp.columns, warp.position + 2 * pair);
    first = from + lane < end && at.first;
    second = from + lane < end && at.second;
    held = warp.held + pair * pair_bytes(sizeof(Storage));
    to = warp.to + (at.row * args.out_w + at.col);
  }

  // All words of the row are read when it returns.
  __device__ __forceinline__ void store_row(const Args<Storage>& args, int row) const {
    HeldPair<Storage> pair;
    pair.load(held + row * row_bytes(sizeof(Storage)));
    const float4 affine = load_affine(warp.affine + row * 16);
    float v[4];
    pair.values(v);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t channel = row + half * kPartner;
      const float a = half == 0 ? affine.x : affine.y, b = half == 0 ? affine.z : affine.w;
      const float left = fmaf(v[2 * half], a, b), right = fmaf(v[2 * half + 1], a, b);
      uint64_t offset = uint64_t{channel} * args.plane_bytes;
      asm("" : "+l"(offset));  // to uniform registers: as part of the sum each lane would work it out
      Storage* const at = reinterpret_cast<Storage*>(reinterpret_cast<char*>(to) + offset);
      if constexpr (kPairStores && sizeof(Storage) == 4) {
        if (first) hopper::store_pair(at, make_float2(left, right));
      } else if constexpr (kPairStores) {
        store_pair_if(first, at, left, right);
      } else {
        const bool wanted = static_cast<int>(channel) < warp.channels;
        store_output_if(wanted && first, at, left);
        store_output_if(wanted && second, at + 1, right);
      }
    }
  }
};

// All of them, one after the other.
template <bool kPairStores, typename Storage>
__device__ __forceinline__ void store_rounds(const Args<Storage>& args, const Shared& shared, int turn) {
  using Of = Rounds<kPairStores, Storage>;
  const WarpStores<Storage> warp(args, shared, turn);
#pragma unroll 1
  for (int round = 0; round < kRounds; ++round) {
#pragma unroll 1
    for (int row_class = 0; row_class < Of::kClasses; ++row_class) {
      StoreRound<kPairStores, Storage> stores(warp);
      stores.begin(args, round, row_class);
#pragma unroll 2  // or each row waits for its own words
      for (int i = 0; i < Of::kRowsOfClass; ++i) stores.store_row(args, row_class + i * Of::kClasses);
    }
  }
}

}  // namespace held
}  // namespace cuda
}  // namespace tconv
