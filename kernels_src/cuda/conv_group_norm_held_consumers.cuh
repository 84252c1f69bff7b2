// Consumers of the kernel that holds a sample's outputs: products; then in turns stores of the sample before, and of this one bias,
// element-wise chain, moments, and outputs into shared memory as the upper 24 bits of their differences from pivot_of their channel.
// What a warp has put there, the same warp stores.
#pragma once

#include "conv_group_norm_held_args.cuh"
#include "conv_group_norm_held_store.cuh"
#include "conv_transpose_sm90_epilogue.cuh"
#include "sm90_wgmma.cuh"

namespace tconv {
namespace cuda {
namespace held {

// Where the block's `count`-th chunk of all is: in which stages, and with which parity of their barriers.
struct ChunkPlace {
  int stage, weights;
  uint32_t stage_parity, weights_parity;

  __device__ __forceinline__ ChunkPlace(const Plan& plan, uint32_t count) {
    static_assert(kMaxStages == kMinStages + 1, "one or the other");
    const uint32_t laps = plan.num_stages == kMaxStages ? count / kMaxStages : count / kMinStages;
    stage = count - laps * plan.num_stages, stage_parity = laps % 2;
    weights = count % kWeightStages, weights_parity = count / kWeightStages % 2;
  }
};

// Weights of a chunk of the block's `turn`-th sample, or of one that follows, to a stage of their ring. One thread.
template <typename Storage>
__device__ __forceinline__ void load_weights(const Args<Storage>& args, const Shared& shared, int turn, int chunk, int slot) {
  for (; chunk >= args.plan.num_chunks; chunk -= args.plan.num_chunks) ++turn;
  if (shared.sample(args, turn) >= args.batch) return;
  const int bytes = args.plan.weight_stage_bytes;
  const uint32_t full = shared.weights_full + 8 * slot;
  sm90::mbarrier_arrive_expect_bytes(full, bytes);
  sm90::bulk_load(shared.weights + slot * bytes, reinterpret_cast<const char*>(args.weight_tiles) + chunk * bytes, bytes, full);
}
__device__ __forceinline__ bool loads_weights() { return opaque(threadIdx.x) == (kSegments - 1) * 128; }

// All products of one segment of the block's `turn`-th sample, onto zeros. Gives every chunk back.
template <typename Storage>
__device__ __forceinline__ void multiply_sample(const Args<Storage>& args, const Shared& shared, int turn, float (&acc)[kN / 2]) {
  constexpr bool kBFloat16 = std::is_same<Storage, __nv_bfloat16>::value;
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) acc[i] = 0.0f;
  sm90::pin_registers(acc);  // now: a zero written after a product has begun makes ptxas wait for each product
  const Plan& plan = args.plan;
  const int thread = opaque(threadIdx.x), segment = thread / 128;
  const uint32_t weights_low = sm90::descriptor_low(shared.weights);
  constexpr uint32_t kPixel = kPixelBytes >> 4;
  const uint32_t ring_low = sm90::descriptor_low(shared.ring) + (segment * kN + plan.first_pixel) * kPixel;
  const auto give_back = [&](int chunk) {
    const ChunkPlace at(plan, turn * plan.num_chunks + chunk);
    if (thread % 32 == 0) {
      sm90::mbarrier_arrive(shared.chunk_empty + 8 * at.stage);
      sm90::mbarrier_arrive(shared.weights_empty + 8 * at.weights);
    }
    if (loads_weights()) {
      sm90::mbarrier_wait(shared.weights_empty + 8 * at.weights, at.weights_parity);
      load_weights(args, shared, turn, chunk + kWeightStages, at.weights);
    }
    __syncwarp();
  };
  for (int chunk = 0; chunk < plan.num_chunks; ++chunk) {
    const ChunkPlace at(plan, turn * plan.num_chunks + chunk);
    sm90::mbarrier_wait(shared.weights_full + 8 * at.weights, at.weights_parity);
    sm90::mbarrier_wait(shared.chunk_full + 8 * at.stage, at.stage_parity);
    // Here and not with the producers: as MEMBAR it waits for loads under way, of which they have many.
    sm90::fence_async_proxy();
    uint32_t a = sm90::uniform(weights_low + at.weights * (plan.weight_stage_bytes >> 4));
    uint32_t row = sm90::uniform(ring_low + at.stage * (plan.stage_bytes >> 4));
    for (int tap_h = 0; tap_h < plan.taps_h; ++tap_h, row += plan.tap_step_h * kPixel) {
      uint32_t b = row;
#pragma unroll 1
      for (int tap_w = 0; tap_w < plan.taps_w; ++tap_w, a += kTapBytes >> 4, b += plan.tap_step_w * kPixel) {
        sm90::wgmma_fence();
        sm90::Wgmma<kN>::template multiply<kBFloat16>(acc, sm90::narrow_matrix_descriptor(a), sm90::narrow_matrix_descriptor(b));
        sm90::wgmma_commit();
        if (tap_h + tap_w == 0 && chunk > 0) {
          sm90::wgmma_wait<1>();  // the chunk before is done with its stages
          give_back(chunk - 1);
        }
      }
    }
  }
  sm90::wgmma_wait<0>();
  give_back(plan.num_chunks - 1);
  sm90::pin_registers(acc);
}

// Which of a thread's pixels are outputs: those of fragments of 8 columns. The same for every sample.
struct SegmentPart {
  uint32_t first = 0, second = 0;  // bit j: is column 8j + 2(lane%4), or the next, one?

  template <typename Storage>
  __device__ __forceinline__ SegmentPart(const Args<Storage>& args, const Place& place, int segment) {
    for (int j = 0; j < kN / 8; ++j) {
      const PairPlace pair(args, place.strip, place.tile * kTilePixels + segment * kN + 8 * j + 2 * (threadIdx.x % 4));
      first |= static_cast<uint32_t>(pair.first) << j;
      second |= static_cast<uint32_t>(pair.second) << j;
    }
  }
};

// A thread's two channels, kPartner apart.
template <typename Storage>
struct ChannelPair {
  int channels[2];  // where there is no such channel, one that there is
  float inv_scale[2], bias[2];

  __device__ __forceinline__ explicit ChannelPair(const Args<Storage>& args) {
    const int thread = opaque(threadIdx.x), first = thread / 32 % 4 * 2 * kPartner + thread % 32 / 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int channel = first + half * kPartner;
      channels[half] = channel < args.plan.out_channels ? channel : 0;
      inv_scale[half] = args.inv_scale[channel];
      bias[half] = channel_bias<float>(args.epilogue, channels[half]);
    }
  }

  __device__ __forceinline__ float finish(const Args<Storage>& args, float acc, int half) const {
    return Epilogue::apply<float, Storage>(acc * inv_scale[half] + bias[half], args.epilogue, channels[half]);
  }
};

// Chain and moments of a segment's accumulators, and outputs to where those of turn `before` are held, if there are any. These are
// stored first. Where stores are of pairs, only those of the first round at once; of the next round a row now and then: so they do
// not fill the queue that shared memory is behind, too.
template <bool kPairStores, typename Storage>
__device__ __forceinline__ void hold_segment(const Args<Storage>& args, const Shared& shared, const SegmentPart& part,
                                             const float (&acc)[kN / 2], int before) {
  StoreRound<kPairStores, Storage> stores;
#pragma unroll 1
  for (int round = 0; round < (kPairStores ? 1 : kRounds); ++round) {
    stores.begin(args, shared, before, round);
#pragma unroll 1
    for (int row = 0; row < kPartner; ++row) stores.store_row(row);
  }
  const ChannelPair<Storage> pair(args);
  const int thread = opaque(threadIdx.x), lane = thread % 32, warp = thread / 32 % 4, segment = thread / 128;
  const int channel0 = warp * 2 * kPartner + lane / 4;
  const uint32_t held = shared.held_at(thread / 32, lane % 4) + lane / 4 * kRowBytes;
  const uint32_t is_first = opaque(part.first), is_second = kPairStores ? is_first : opaque(part.second);
  float pivot[2];
  // Moments about one of the values themselves, so that its distance from the mean costs no more digits than their spread does:
  // of the few that are looked at in a quad of lanes; about the pivot where none is an output. (Source: sm90::ShiftedSums.)
  float shift[2], sum[2] = {0.0f, 0.0f}, squares[2] = {0.0f, 0.0f};
  float raw[2] = {0.0f, 0.0f};
  bool found = false;
#pragma unroll
  for (int j : {0, 5, 11, 17}) {
    if (!found && (is_first >> j & 1)) raw[0] = acc[4 * j], raw[1] = acc[4 * j + 2], found = true;
  }
  const uint32_t finders = __ballot_sync(0xFFFFFFFFu, found) >> (lane & ~3) & 15;
  const int finder = (lane & ~3) + (finders & 1 ? 0 : finders & 2 ? 1 : finders & 4 ? 2 : 3);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    pivot[half] = pair.finish(args, 0.0f, half);  // as pivot_of
    shift[half] = pair.finish(args, __shfl_sync(0xFFFFFFFFu, raw[half], finder), half);
  }
  const auto add = [&](int half, float value) {
    const float d = value - shift[half];
    sum[half] += d;
    squares[half] = fmaf(d, d, squares[half]);
  };
#pragma unroll
  for (int j = 0; j < kN / 8; ++j) {
    if (j % kFragmentsOfRound == 0) __syncwarp();  // the round's words are read
    if (kPairStores && j / kFragmentsOfRound + 1 < kRounds) {
      constexpr int kFirst = 2, kRest = kFragmentsOfRound - kFirst;  // of a round's fragments; before, registers are short
      const int fragment = j % kFragmentsOfRound - kFirst;
      if (fragment == 0) stores.begin(args, shared, before, j / kFragmentsOfRound + 1);
      for (int row = fragment * kPartner / kRest; fragment >= 0 && row < (fragment + 1) * kPartner / kRest; ++row)
        stores.store_row(row);
    }
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = pair.finish(args, acc[4 * j + i], i / 2);
    if (is_first >> j & 1) add(0, v[0]), add(1, v[2]);
    if (is_second >> j & 1) add(0, v[1]), add(1, v[3]);
    uint32_t bits[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) bits[i] = __float_as_uint(v[i] - pivot[i / 2]);
    const uint32_t thirds = __byte_perm(__byte_perm(bits[0], bits[1], 0x0051), __byte_perm(bits[2], bits[3], 0x0051), 0x5410);
    store_word(held + 16 * j, __byte_perm(bits[0], bits[1], 0x7632));
    store_word(held + kPairs * 4 + 16 * j, __byte_perm(bits[2], bits[3], 0x7632));
    store_word(held + 2 * kPairs * 4 + 16 * j, thirds);
  }
  float count = static_cast<float>(__popc(is_first) + __popc(is_second));
#pragma unroll
  for (int other = 1; other <= 2; other *= 2) {
    count += __shfl_xor_sync(0xFFFFFFFFu, count, other);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[half] += __shfl_xor_sync(0xFFFFFFFFu, sum[half], other);
      squares[half] += __shfl_xor_sync(0xFFFFFFFFu, squares[half], other);
    }
  }
  if (lane % 4 != 0) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float mean = count > 0.0f ? __fdividef(sum[half], count) : 0.0f, m2 = squares[half] - sum[half] * mean;
    const int row = segment * kChannels + channel0 + half * kPartner;
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(shared.moments + row * 16), "f"(count), "f"(shift[half] + mean),
                 "f"(m2 < 0.0f ? 0.0f : m2), "f"(0.0f)
                 : "memory");
  }
}

template <bool kPairStores, typename Storage>
__device__ __forceinline__ void consume(const Args<Storage>& args, const Shared& shared, const Place& place, int segment) {
  const SegmentPart part(args, place, segment);
  const auto wait_for_statistics = [&](int turn) {
    if (turn >= 0) sm90::mbarrier_wait(shared.affine_full, turn % 2);
  };
  if (loads_weights())
    for (int chunk = 0; chunk < kWeightStages; ++chunk) load_weights(args, shared, 0, chunk, chunk);
  __syncwarp();
  int turn = 0;  // samples before, of this block
  for (; shared.sample(args, turn) < args.batch; ++turn) {
    float acc[kN / 2];
    multiply_sample(args, shared, turn, acc);
    wait_for_statistics(turn - 1);
    hold_segment<kPairStores>(args, shared, part, acc, turn - 1);
    __syncwarp();
    if (threadIdx.x % 32 == 0) sm90::mbarrier_arrive(shared.moments_full);
  }
  wait_for_statistics(--turn);
#pragma unroll 1
  for (int round = 0; round < kRounds; ++round) {
    StoreRound<kPairStores, Storage> stores;
    stores.begin(args, shared, turn, round);
#pragma unroll 1
    for (int row = 0; row < kPartner; ++row) stores.store_row(row);
  }
}

}  // namespace held
}  // namespace cuda
}  // namespace tconv
