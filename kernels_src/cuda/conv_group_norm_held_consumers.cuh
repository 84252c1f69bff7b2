// Consumers of the kernel that holds a sample's outputs: products, and the stores of the sample before meanwhile; then bias,
// element-wise chain and moments, and outputs into shared memory as the upper 24 bits of their differences from pivot_of their
// channel. What a warp has put there, the same warp stores.
#pragma once

#include "conv_group_norm_held_args.cuh"
#include "conv_group_norm_held_store.cuh"
#include "conv_transpose_sm90_epilogue.cuh"
#include "sm90_wgmma.cuh"

namespace tconv {
namespace cuda {
namespace held {

// Begins all products of one segment of a sample. Gives every chunk back but the last, which is still being read.
// meanwhile(chunk) is called while a chunk's are under way.
template <bool kBFloat16, typename Meanwhile>
__device__ __forceinline__ void multiply_sample(const Plan& plan, const Shared& shared, int segment, sm90::RingCursor& stage,
                                                float (&acc)[kN / 2], Meanwhile&& meanwhile) {
  const bool elected = threadIdx.x % 32 == 0;
  const uint32_t weights_low = sm90::descriptor_low(shared.weights);
  constexpr uint32_t kPixel = kPixelBytes >> 4;
  const uint32_t ring_low = sm90::descriptor_low(shared.ring) + (segment * kN + plan.first_pixel) * kPixel;
  int previous = -1;
  for (int chunk = 0; chunk < plan.num_chunks; ++chunk) {
    sm90::mbarrier_wait(shared.chunk_full + 8 * stage.slot, stage.parity);
    uint32_t a = sm90::uniform(weights_low + chunk * sm90::kDescriptorStepK16);
    uint32_t row = sm90::uniform(ring_low + stage.slot * (plan.stage_bytes >> 4));
    for (int tap_h = 0; tap_h < plan.taps_h; ++tap_h, row += plan.tap_step_h * kPixel) {
      uint32_t b = row;
#pragma unroll 1
      for (int tap_w = 0; tap_w < plan.taps_w; ++tap_w, a += kTapBytes >> 4, b += plan.tap_step_w * kPixel) {
        sm90::wgmma_fence();
        sm90::Wgmma<kN>::template multiply<kBFloat16>(acc, sm90::matrix_descriptor(a), sm90::narrow_matrix_descriptor(b));
        sm90::wgmma_commit();
        if (tap_h + tap_w == 0 && previous >= 0) {
          sm90::wgmma_wait<1>();  // the chunk before is done with its stage
          if (elected) sm90::mbarrier_arrive(shared.chunk_empty + 8 * previous);
        }
      }
    }
    previous = stage.slot;
    stage.next(kStages);
    meanwhile(chunk);
  }
}

// Which of a thread's pixels are outputs: those of fragments of 8 columns. The same for every sample.
struct SegmentPart {
  uint32_t first = 0, second = 0;  // bit j: is column 8j + 2(lane%4), or the next, one?

  template <typename Storage>
  __device__ __forceinline__ SegmentPart(const Args<Storage>& args, const Place& place, int segment) {
    for (int j = 0; j < kN / 8; ++j) {
      const PairPlace pair(args, place, place.tile * kTilePixels + segment * kN + 8 * j + 2 * (threadIdx.x % 4));
      first |= static_cast<uint32_t>(pair.first) << j;
      second |= static_cast<uint32_t>(pair.second) << j;
    }
  }
};

// A thread's two channels, kPartner apart. Loaded while the last products are under way.
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

// Chain and moments of a segment's accumulators, and outputs to where they are held.
template <typename Storage>
__device__ __forceinline__ void hold_segment(const Args<Storage>& args, const Shared& shared, const SegmentPart& part,
                                             const ChannelPair<Storage>& pair, const float (&acc)[kN / 2]) {
  const int thread = opaque(threadIdx.x), lane = thread % 32, warp = thread / 32 % 4, segment = thread / 128;
  const int channel0 = warp * 2 * kPartner + lane / 4;
  const uint32_t high = shared.high_at(segment, channel0, lane % 4);
  const uint32_t third = shared.third_at(segment, warp * kPartner + lane / 4, lane % 4);
  const uint32_t is_first = opaque(part.first), is_second = opaque(part.second);
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
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = pair.finish(args, acc[4 * j + i], i / 2);
    if (is_first >> j & 1) add(0, v[0]), add(1, v[2]);
    if (is_second >> j & 1) add(0, v[1]), add(1, v[3]);
    uint32_t bits[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) bits[i] = __float_as_uint(v[i] - pivot[i / 2]);
    const uint32_t thirds = __byte_perm(__byte_perm(bits[0], bits[1], 0x0051), __byte_perm(bits[2], bits[3], 0x0051), 0x5410);
    store_word(high + 16 * j, __byte_perm(bits[0], bits[1], 0x7632));
    store_word(high + kPartner * kPairs * 4 + 16 * j, __byte_perm(bits[2], bits[3], 0x7632));
    store_word(third + 16 * j, thirds);
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

template <typename Storage>
__device__ __forceinline__ void consume(const Args<Storage>& args, const Shared& shared, const Place& place, int segment) {
  constexpr bool kBFloat16 = std::is_same<Storage, __nv_bfloat16>::value;
  const SegmentPart part(args, place, segment);
  sm90::RingCursor stage;
  StoreWalk<Storage> walk(args, place, segment);
  bool holding = false;  // outputs of the sample before?
  uint32_t parity = 0;   // of its statistics
  // Where the statistics are there early, warpgroups store one after the other, while the others keep the tensor cores busy.
  const int store_after = args.plan.num_chunks - kSegments + segment;
  const auto store_all = [&] {
    while (!walk.done()) walk.step(args, shared);
  };
  const auto meanwhile = [&](int chunk) {
    if (!holding || walk.done() || chunk < store_after) return;
    if (__all_sync(0xFFFFFFFFu, sm90::mbarrier_passed(shared.affine_full, parity))) store_all();
  };
  const auto finish_stores = [&] {
    if (!holding) return;
    if (!walk.done()) {
      sm90::mbarrier_wait(shared.affine_full, parity);
      store_all();
    }
    __syncwarp();
    parity ^= 1;
  };
  sm90::mbarrier_wait(shared.weights_full, 0);
  for (int sample = place.first_sample; sample < args.batch; sample += place.sample_step) {
    float acc[kN / 2];
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) acc[i] = 0.0f;
    multiply_sample<kBFloat16>(args.plan, shared, segment, stage, acc, meanwhile);
    sm90::wgmma_wait<0>();
    if (threadIdx.x % 32 == 0) sm90::mbarrier_arrive(shared.chunk_empty + 8 * (stage.slot == 0 ? kStages - 1 : stage.slot - 1));
    sm90::pin_registers(acc);
    finish_stores();
    const ChannelPair<Storage> pair(args);
    hold_segment(args, shared, part, pair, acc);
    __syncwarp();
    if (threadIdx.x % 32 == 0) sm90::mbarrier_arrive(shared.moments_full);
    holding = true;
    walk.begin(sample);
  }
  finish_stores();
}

}  // namespace held
}  // namespace cuda
}  // namespace tconv
