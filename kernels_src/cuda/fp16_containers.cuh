// fp32 operands with TF32 allowed, as the tensor-core kernels carry them: 11 significant bits, what TF32 keeps, rounded
// to nearest, in fp16 numbers, which multiply at twice the rate on half the bytes. Powers of two bring them into fp16's
// range: one for the input, one per output channel for the weights, both undone exactly in the epilogue. What the range
// cannot hold raises a guard on the device; the strict kernel, launched behind, then computes the whole output again.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace tconv {
namespace cuda {

// Inputs are multiplied by this before rounding: |x| < 255.9 is in range, and values from kSmallestExact up keep 11
// bits.
constexpr float kInputScale = 256.0f;
constexpr float kSmallestExact = 0x1p-22f;

// Device-side words of a call; cleared before its kernels run.
struct GuardState {
  int out_of_range;  // not 0: fp16 containers cannot hold these operands to TF32's accuracy
#ifdef TCONV_INPUT_SCALE_FROM_DEVICE
  unsigned largest;  // bits of the largest magnitude in a sample of the input (gradient_scales.cuh)
#endif
};

// What inputs are multiplied by: a constant, but in the gradients' library, whose inputs are gradients of any
// magnitude, and beside ordinary convolutions.
struct InputScale {
#ifdef TCONV_INPUT_SCALE_FROM_DEVICE
  int exponent;
  float value, smallest_exact;

  __device__ __forceinline__ explicit InputScale(const GuardState* state);
#else
  static constexpr float value = kInputScale, smallest_exact = kSmallestExact;

  __device__ __forceinline__ explicit InputScale(const GuardState*) {}
#endif
};

__device__ __forceinline__ uint32_t pack_pair(float a, float b) {
  const __half2 pair = __floats2half2_rn(a, b);
  return *reinterpret_cast<const uint32_t*>(&pair);
}
__device__ __forceinline__ uint32_t pack_pair(__half a, __half b) {
  return static_cast<uint32_t>(__half_as_ushort(a)) | static_cast<uint32_t>(__half_as_ushort(b)) << 16;
}
__device__ __forceinline__ uint32_t pack_pair(__nv_bfloat16 a, __nv_bfloat16 b) {
  return static_cast<uint32_t>(__bfloat16_as_ushort(a)) | static_cast<uint32_t>(__bfloat16_as_ushort(b)) << 16;
}

// Two inputs, scaled and rounded; `largest` follows the magnitudes, NaN above all.
__device__ __forceinline__ uint32_t pack_scaled_inputs(float a, float b, __half2& largest, float scale = kInputScale) {
  const uint32_t packed = pack_pair(a * scale, b * scale);
  largest = __hmax2_nan(largest, __habs2(*reinterpret_cast<const __half2*>(&packed)));
  return packed;
}

// A warp raises the guard over inputs it has packed: overflow, infinity or NaN anywhere; or all of them so small that
// fp16's subnormals would show, and some of them subnormal there. One large value excuses small ones beside it: their
// error is below 2^-33, and 2^-21 of the large one. subnormal() is asked only where all are small: may a value of this
// thread be?
template <typename Subnormal>
__device__ __forceinline__ void guard_packed(__half2 largest, GuardState* guard, Subnormal&& subnormal) {
  const float magnitude = __half2float(__hmax_nan(__low2half(largest), __high2half(largest)));
  constexpr float kSmall = 0x1p-12f * kInputScale;
  const bool overflow = !(magnitude <= 65504.0f), small = magnitude < kSmall;
  if (!__any_sync(0xFFFFFFFFu, overflow || small)) return;
  bool raise = __any_sync(0xFFFFFFFFu, overflow);
  if (!raise && __all_sync(0xFFFFFFFFu, small)) raise = __any_sync(0xFFFFFFFFu, subnormal());
  if (raise && threadIdx.x % 32 == 0) guard->out_of_range = 1;
}

// The same where the values are still at hand: for_each(f) calls f with every value of this thread, unscaled.
template <typename ForEach>
__device__ __forceinline__ void guard_range(__half2 largest, GuardState* guard, float smallest_exact,
                                            ForEach&& for_each) {
  guard_packed(largest, guard, [&] {
    bool subnormal = false;
    for_each([&](float v) { subnormal |= v != 0.0f && fabsf(v) < smallest_exact; });
    return subnormal;
  });
}

// And where they are gone: what is known of many values, a few instructions each. Any that is not zero may be
// subnormal.
struct RangeWatch {
  __half2 largest = __floats2half2_rn(0.0f, 0.0f);
  uint32_t any_bits = 0;

  __device__ __forceinline__ uint32_t pack(float a, float b) {
    any_bits |= __float_as_uint(a) | __float_as_uint(b);
    return pack_scaled_inputs(a, b, largest);
  }
  __device__ __forceinline__ void raise(GuardState* guard) const {
    guard_packed(largest, guard, [&] { return any_bits << 1 != 0; });
  }
};

// The power of two that brings an output channel's largest weight to [2^14, 2^15), so that fp16's range holds weights
// down to 2^-29 of it; and what undoes it and kInputScale.
struct WeightScale {
  float scale, inverse;
};

__device__ __forceinline__ float scale_of_inverse(float inverse) { return 1.0f / (inverse * kInputScale); }

// All kThreads threads of a block, for one channel: [in_channels] runs of `taps` weights, `run_stride` apart.
template <int kThreads>
__device__ __forceinline__ WeightScale find_weight_scale(const float* weights, int64_t in_channels, int64_t taps,
                                                         int64_t run_stride, GuardState* guard,
                                                         float input_scale = kInputScale) {
  uint32_t largest = 0;  // magnitude as bits: NaN and infinity compare highest
  // Several loads at a time and no division for each, or this takes longer than all the rest.
  constexpr int kInFlight = 8;
  const int64_t run_step = kThreads / taps, tap_step = kThreads % taps;
  for (int64_t run = threadIdx.x / taps, tap = threadIdx.x % taps; run < in_channels;) {
    uint32_t magnitudes[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) {
#ifdef TCONV_GATHERS_PIXELS
      // Beyond the last run that one again: the compiler puts branches around loads that are conditional.
      const int64_t there = run < in_channels ? run : in_channels - 1;
      magnitudes[k] = __float_as_uint(weights[there * run_stride + tap]) & 0x7FFFFFFFu;
#else
      magnitudes[k] = run < in_channels ? __float_as_uint(weights[run * run_stride + tap]) & 0x7FFFFFFFu : 0;
#endif
      run += run_step;
      tap += tap_step;
      if (tap >= taps) {
        tap -= taps;
        ++run;
      }
    }
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) largest = max(largest, magnitudes[k]);
  }
  largest = __reduce_max_sync(0xFFFFFFFFu, largest);
  __shared__ uint32_t warp_largest[kThreads / 32];
  if (threadIdx.x % 32 == 0) warp_largest[threadIdx.x / 32] = largest;
  __syncthreads();
  for (int i = 0; i < kThreads / 32; ++i) largest = max(largest, warp_largest[i]);
  const int exponent = static_cast<int>(largest >> 23) - 127;  // of the largest magnitude
  // Outside these the power of two, or its inverse with the input's, is no normal fp32 number.
  const bool representable = largest == 0 || (exponent >= -96 && exponent <= 96);
  if (!representable && threadIdx.x == 0) guard->out_of_range = 1;
  const int shift = largest == 0 || !representable ? 0 : 14 - exponent;
  return {__uint_as_float(static_cast<uint32_t>(127 + shift) << 23),
          __uint_as_float(static_cast<uint32_t>(127 - shift) << 23) / input_scale};
}

}  // namespace cuda
}  // namespace tconv
