// Consumers of the kernel that holds a sample's outputs: products; then in turns stores of the sample before, and of
// this one bias, element-wise chain, moments, and outputs into shared memory. What a warp has put there, the same warp
// stores.
#pragma once

#include "conv_group_norm_held_args.cuh"
#include "conv_group_norm_held_store.cuh"
#include "conv_group_norm_held_wgmma.cuh"

namespace tconv {
namespace cuda {
namespace held {

// Where the `count`-th of all is in a ring.
__device__ __forceinline__ hopper::RingCursor ring_place(uint32_t count, uint32_t size) {
  const uint32_t laps = count / size;
  hopper::RingCursor place;
  place.slot = count - laps * size, place.parity = laps % 2;
  return place;
}

// All products of one segment of the block's `turn`-th sample. Gives every chunk and all weights back.
template <typename Storage>
__device__ __forceinline__ void multiply_sample(const Args<Storage>& args, const Shared& shared, int turn,
                                                float (&acc)[kN / 2]) {
  constexpr bool kBFloat16 = std::is_same<Storage, __nv_bfloat16>::value;
  const Plan& plan = args.plan;
  const int thread = consumer_thread(), segment = thread / 128;
  constexpr uint32_t kPixel = kPixelBytes >> 4, kTap = kTapBytes >> 4;
  const uint32_t weights_low = hopper::descriptor_low(shared.weights);
  const uint32_t ring_low =
      hopper::uniform(hopper::descriptor_low(shared.ring) + (segment * kN + plan.first_pixel) * kPixel);
  hopper::RingCursor stage = ring_place(turn * plan.num_chunks, plan.num_stages);
  hopper::RingCursor weights = ring_place(turn * plan.weight_rows(), plan.num_weight_stages);
  uint32_t chunk_done = 0, weights_done = 0;  // barriers of the chunk, where it has ended, and the row of taps before
  const auto give_back = [&]() {
    if (thread % 32 == 0) {
      if (chunk_done != 0) hopper::mbarrier_arrive(chunk_done);
      hopper::mbarrier_arrive(weights_done);
    }
    __syncwarp();
    chunk_done = 0;
  };
  const auto multiply = [&](uint32_t a, uint32_t b, uint32_t onto) {
    multiply_onto<kBFloat16>(acc, hopper::narrow_matrix_descriptor(a), hopper::narrow_matrix_descriptor(b), onto);
  };
  for (int chunk = 0; chunk < plan.num_chunks; ++chunk) {
    hopper::mbarrier_wait(shared.chunk_full + 8 * stage.slot, stage.parity);
    // Here and not with the producers: as MEMBAR it waits for loads under way, of which they have many.
    hopper::fence_async_proxy();
    uint32_t b = ring_low + stage.slot * (plan.stage_bytes >> 4);
    for (int tap_h = 0; tap_h < plan.taps_h; ++tap_h, b += plan.tap_step_h * kPixel) {
      hopper::mbarrier_wait(shared.weights_full + 8 * weights.slot, weights.parity);
      const uint32_t a = weights_low + weights.slot * (plan.weight_stage_bytes >> 4), step = plan.tap_step_w * kPixel;
      hopper::wgmma_fence();
      multiply(a, b, hopper::uniform(weights_done));  // nothing before the first
      hopper::wgmma_commit();
      if (weights_done != 0) {
        hopper::wgmma_wait<1>();  // the row before is done
        give_back();
      }
      hopper::wgmma_fence();
      if (plan.taps_w == 3) {  // the commonest kernel, without a loop
        multiply(a + kTap, b + step, 1);
        multiply(a + 2 * kTap, b + 2 * step, 1);
      } else {
#pragma unroll 1
        for (int tap_w = 1; tap_w < plan.taps_w; ++tap_w) multiply(a + tap_w * kTap, b + tap_w * step, 1);
      }
      hopper::wgmma_commit();
      weights_done = shared.weights_empty + 8 * weights.slot;
      weights.next(plan.num_weight_stages);
    }
    chunk_done = shared.chunk_empty + 8 * stage.slot;
    stage.next(plan.num_stages);
  }
  hopper::wgmma_wait<0>();
  give_back();
  hopper::pin_registers(acc);
}

// Which of a thread's pixels are outputs: those of fragments of 8 columns. The same for every sample.
struct SegmentPart {
  uint32_t first = 0, second = 0;  // bit j: is column 8j + 2(lane%4), or the next, one?

  template <typename Storage>
  __device__ __forceinline__ SegmentPart(const Args<Storage>& args, const Place& place, int segment) {
    const int columns = args.plan.columns(place.strip, args.out_w);
    for (int j = 0; j < kN / 8; ++j) {
      const PairPlace pair(args, columns, place.tile * kTilePixels + segment * kN + 8 * j + 2 * (threadIdx.x % 4));
      first |= static_cast<uint32_t>(pair.first) << j;
      second |= static_cast<uint32_t>(pair.second) << j;
    }
  }
};

// A thread's two channels, kPartner apart.
struct ChannelPair {
  int channels[2];  // where there is no such channel, one that there is
  float inv_scale[2], bias[2];

  template <typename Storage>
  __device__ __forceinline__ ChannelPair(const Args<Storage>& args, const Shared& shared) {
    const int thread = consumer_thread(), first = thread / 32 % 4 * 2 * kPartner + thread % 32 / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int channel = first + half * kPartner;
      const Parameters parameters(shared, channel);
      channels[half] = channel < args.plan.out_channels ? channel : 0;
      inv_scale[half] = parameters.inv_scale, bias[half] = parameters.bias;
    }
  }

  template <typename Storage>
  __device__ __forceinline__ float finish(const Args<Storage>& args, float acc, int half) const {
    return Epilogue::apply<float, Result<Storage>>(acc * inv_scale[half] + bias[half], args.epilogue, channels[half]);
  }
};

// Moments of a lane's values in two rows, as differences from a value like them, so that its distance from the mean
// costs no more digits than their spread does.
struct LaneMoments {
  float shift[2], sum[2] = {0.0f, 0.0f}, squares[2] = {0.0f, 0.0f};

  __device__ __forceinline__ void add(int half, float difference) {
    sum[half] += difference;
    squares[half] = fmaf(difference, difference, squares[half]);
  }

  // Those of a quad of lanes, who share the shift, to shared memory: of the row `at` and the one kPartner channels on.
  __device__ __forceinline__ void store(uint32_t at, float count) {
#pragma unroll
    for (int other = 1; other <= 2; other *= 2) {
      count += __shfl_xor_sync(0xFFFFFFFFu, count, other);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sum[half] += __shfl_xor_sync(0xFFFFFFFFu, sum[half], other);
        squares[half] += __shfl_xor_sync(0xFFFFFFFFu, squares[half], other);
      }
    }
    if (threadIdx.x % 4 != 0) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float mean = count > 0.0f ? __fdividef(sum[half], count) : 0.0f, m2 = squares[half] - sum[half] * mean;
      asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at + half * kPartner * kMomentBytes), "f"(count),
                   "f"(shift[half] + mean), "f"(m2 < 0.0f ? 0.0f : m2), "f"(shift[half])
                   : "memory");
    }
  }
};

// The smallest in magnitude of a few of a quad of lanes' accumulators in a channel, which an outlier is not: 0 if none
// is an output, or finite.
__device__ __forceinline__ float usual_accumulator(const float (&acc)[kN / 2], uint32_t is_first, int half) {
  float least = INFINITY;
#pragma unroll
  for (int j : {0, 5, 11, 17}) {
    const float its = acc[4 * j + 2 * half];
    if ((is_first >> j & 1) && fabsf(its) < fabsf(least)) least = its;
  }
#pragma unroll
  for (int other = 1; other <= 2; other *= 2) {
    const float its = __shfl_xor_sync(0xFFFFFFFFu, least, other);
    // Of two that are as small the lower: both lanes choose the same.
    if (fabsf(its) < fabsf(least) || (fabsf(its) == fabsf(least) && its < least)) least = its;
  }
  return fabsf(least) < INFINITY ? least : 0.0f;
}

// Ends a basic block, out of which ptxas moves nothing: within one it gathers all stores behind the chain, as nothing
// waits for them, and memory has nothing to do until then; and it has no registers for the fragments of a long chain
// side by side. A turn is never negative, which ptxas does not know.
__device__ __forceinline__ void end_basic_block(int turn) {
  asm volatile("{\n.reg .pred p;\nsetp.lt.s32 p, %0, 0;\n@p exit;\n}" ::"r"(turn) : "memory");
}

// Chain and moments of the accumulators of a segment of the block's `turn`-th sample, and outputs to where those of the
// sample before are held, which are stored before: where stores are of pairs, a row with each fragment, so that memory
// and chain work side by side.
template <bool kPairStores, typename Storage>
__device__ __forceinline__ void hold_segment(const Args<Storage>& args, const Shared& shared, const SegmentPart& part,
                                             float (&acc)[kN / 2], int turn) {
  constexpr int kFragments = kN / 8;
  const ChannelPair pair(args, shared);
  const uint32_t is_first = opaque(part.first), is_second = kPairStores ? is_first : opaque(part.second);
  LaneMoments moments;
#pragma unroll
  for (int half = 0; half < 2; ++half)
    moments.shift[half] = pair.finish(args, usual_accumulator(acc, is_first, half), half);
  const auto finish_fragment = [&](int j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[4 * j + i] = pair.finish(args, acc[4 * j + i], i / 2) - moments.shift[i / 2];
    if (is_first >> j & 1) moments.add(0, acc[4 * j]), moments.add(1, acc[4 * j + 2]);
    if (is_second >> j & 1) moments.add(0, acc[4 * j + 1]), moments.add(1, acc[4 * j + 3]);
  };
  using Stores = Rounds<kPairStores, Storage>;
  const auto hold_round = [&](int round) {  // what later rounds of stores do not read
    const int first = round == 0 ? 0 : (round == 1 ? Stores::kSecond : Stores::kThird) / 4;
    const int end = round == 0 ? Stores::kSecond / 4 : round == 1 ? Stores::kThird / 4 : kFragments;
    const int thread = consumer_thread(), lane = thread % 32;  // worked out anew: that takes no registers before
    const uint32_t held = shared.held + (thread / 32 * kPartner + lane / 4) * row_bytes(sizeof(Storage)) +
                          lane % 4 * pair_bytes(sizeof(Storage));
#pragma unroll
    for (int j = first; j < end; ++j) {
      HeldPair<Storage> words;
      words.hold({acc[4 * j], acc[4 * j + 1], acc[4 * j + 2], acc[4 * j + 3]});
      words.store(held + 4 * pair_bytes(sizeof(Storage)) * j);
    }
  };
  if (turn > 0) hopper::mbarrier_wait(shared.affine_full, (turn - 1) % 2);
  if constexpr (!kPairStores) store_rounds<kPairStores>(args, shared, turn - 1);
  const WarpStores<Storage> warp_stores(args, shared, turn - 1);
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    StoreRound<kPairStores, Storage> stores(warp_stores);
    static_assert(kPartner == kFragmentsOfRound, "a row of stores with each fragment");
#pragma unroll
    for (int i = 0; i < kPartner; ++i) {
      if constexpr (kPairStores) {
        if (i % Stores::kRowsOfClass == 0) stores.begin(args, round, i / Stores::kRowsOfClass);
        stores.store_row(args, i / Stores::kRowsOfClass + i % Stores::kRowsOfClass * Stores::kClasses);
      }
      end_basic_block(turn);
      const int j = round * kFragmentsOfRound + i;
      if (j < kFragments) finish_fragment(j);
    }
    if (round == kRounds - 1) {
      const int thread = consumer_thread();
      moments.store(shared.moments_at(thread / 128, thread / 32 % 4 * 2 * kPartner + thread % 32 / 4),
                    static_cast<float>(__popc(is_first) + __popc(is_second)));
    }
    __syncwarp();  // the round's words are read
    if (round == kRounds - 1) hopper::mbarrier_arrive(shared.moments_full);
    hold_round(round);
  }
  __syncwarp();
}

template <bool kPairStores, typename Storage>
__device__ __forceinline__ void consume(const Args<Storage>& args, const Shared& shared, const Place& place,
                                        int segment) {
  const SegmentPart part(args, place, segment);
  int turn = 0;  // samples before, of this block
  for (; shared.sample(args, turn) < args.batch; ++turn) {
    float acc[kN / 2];
    multiply_sample(args, shared, turn, acc);
    hold_segment<kPairStores>(args, shared, part, acc, turn);
  }
  --turn;
  hopper::mbarrier_wait(shared.affine_full, turn % 2);
  store_rounds<kPairStores>(args, shared, turn);
}

}  // namespace held
}  // namespace cuda
}  // namespace tconv
