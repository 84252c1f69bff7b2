// Weights for the Hopper convolution: from PyTorch's layout to the tiles that wgmma reads.
//
// In:  weight [in_channels, out_channels/groups, kernel_h, kernel_w].
// Out: tiles [phase][group][sweep][ic block][tap][block of the sweep] of 64 output channels x 64 input channels in 16 bits,
//      a row of 128 bytes per output channel in the 128-byte swizzle, taps by ascending window row, then column;
//      channels beyond the end are zero.
// fp32 weights become fp16 numbers of 11 significant bits (what TF32 keeps), rounded to nearest. A power of two per
// output channel brings its largest weight to [2^14, 2^15), so that fp16's range holds weights down to 2^-29 of it;
// inv_scale[channel] undoes that and the producers' kInputScale in the epilogue, exactly.
// One block per (padded) output channel of a group.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "conv_transpose_sm90_plan.h"

namespace tconv {
namespace cuda {
namespace sm90 {

using namespace tconv::sm90;

// fp32 inputs are multiplied by this before rounding to fp16: |x| < 255.9 is in range, and values from 2^-22 up keep
// 11 bits.
constexpr float kInputScale = 256.0f;

// Device-side words next to the weight tiles.
struct GuardState {
  int out_of_range;  // not 0: fp16 containers cannot hold these operands to TF32's accuracy
};

template <typename Storage>
struct WeightsArgs {
  Plan plan;
  int64_t kernel_h, kernel_w, stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w;
  const Storage* weight;
  uint4* tiles;
  float* inv_scale;  // [groups * padded output channels]
  GuardState* guard;
};

struct WeightsConfig {
  static constexpr int kThreads = 256;
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

template <typename Storage>
__global__ void __launch_bounds__(WeightsConfig::kThreads) transform_weights_sm90(const __grid_constant__
                                                                                  WeightsArgs<Storage> args) {
  const Plan& plan = args.plan;
  const int padded = plan.num_sweeps * plan.blocks_per_sweep * kBlockOC;
  const int group = blockIdx.x / padded, channel = blockIdx.x % padded;
  const int num_ic = plan.in_channels_per_group, num_oc = plan.out_channels_per_group;
  const bool real = channel < num_oc;
  const int64_t taps = args.kernel_h * args.kernel_w;
  const Storage* source = args.weight + (static_cast<int64_t>(group) * num_ic * num_oc + channel) * taps;

  float scale = 1.0f;
  if constexpr (sizeof(Storage) == 4) {
    // Largest magnitude as bits: NaN and infinity compare highest.
    uint32_t largest = 0;
    if (real) {
      for (int64_t i = threadIdx.x; i < num_ic * taps; i += WeightsConfig::kThreads) {
        const uint32_t bits = __float_as_uint(source[(i / taps) * num_oc * taps + i % taps]) & 0x7FFFFFFFu;
        largest = bits > largest ? bits : largest;
      }
    }
    largest = __reduce_max_sync(0xFFFFFFFFu, largest);
    __shared__ uint32_t warp_largest[WeightsConfig::kThreads / 32];
    if (threadIdx.x % 32 == 0) warp_largest[threadIdx.x / 32] = largest;
    __syncthreads();
    for (int i = 0; i < WeightsConfig::kThreads / 32; ++i) largest = max(largest, warp_largest[i]);
    const int exponent = static_cast<int>(largest >> 23) - 127;  // of the largest magnitude
    // Outside these the power of two, or its inverse with the input's, is no normal fp32 number.
    const bool representable = largest == 0 || (exponent >= -96 && exponent <= 96);
    if (!representable && threadIdx.x == 0) args.guard->out_of_range = 1;
    const int shift = largest == 0 || !representable ? 0 : 14 - exponent;
    scale = __uint_as_float(static_cast<uint32_t>(127 + shift) << 23);
    if (threadIdx.x == 0) {
      args.inv_scale[blockIdx.x] = __uint_as_float(static_cast<uint32_t>(127 - shift) << 23) / kInputScale;
    }
  } else {
    if (threadIdx.x == 0) args.inv_scale[blockIdx.x] = 1.0f;
  }

  const int sweep = channel / (plan.blocks_per_sweep * kBlockOC);
  const int block = channel / kBlockOC % plan.blocks_per_sweep;
  const int row = channel % kBlockOC;
  for (int phase_idx = 0; phase_idx < plan.num_phases; ++phase_idx) {
    const Phase& phase = plan.phases[phase_idx];
    const AxisPhase h =
        make_axis_phase(1 << 30, args.kernel_h, args.stride_h, args.padding_h, args.dilation_h, phase.out_first_h);
    const AxisPhase w =
        make_axis_phase(1 << 30, args.kernel_w, args.stride_w, args.padding_w, args.dilation_w, phase.out_first_w);
    const int num_taps = phase.taps_h * phase.taps_w;
    const int chunks = plan.num_ic_blocks * num_taps * 8;
    for (int i = threadIdx.x; i < chunks; i += WeightsConfig::kThreads) {
      const int chunk = i % 8, tap = i / 8 % num_taps, ic_block = i / 8 / num_taps;
      const int64_t kh = h.tap_first + static_cast<int64_t>(phase.taps_h - 1 - tap / phase.taps_w) * h.tap_step;
      const int64_t kw = w.tap_first + static_cast<int64_t>(phase.taps_w - 1 - tap % phase.taps_w) * w.tap_step;
      uint32_t packed[4] = {0, 0, 0, 0};
      if (real) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int ic = ic_block * kBlockIC + chunk * 8 + 2 * k;
          Storage a = static_cast<Storage>(0.0f), b = a;
          const Storage* at = source + static_cast<int64_t>(ic) * num_oc * taps + kh * args.kernel_w + kw;
          if (ic < num_ic) a = at[0];
          if (ic + 1 < num_ic) b = at[num_oc * taps];
          if constexpr (sizeof(Storage) == 4) {
            packed[k] = pack_pair(a * scale, b * scale);
          } else {
            packed[k] = pack_pair(a, b);
          }
        }
      }
      const int64_t tile =
          phase.weight_base +
          ((static_cast<int64_t>(group) * plan.num_sweeps + sweep) * plan.num_ic_blocks + ic_block) * num_taps + tap;
      args.tiles[(tile * plan.blocks_per_sweep + block) * (kTapBytes / 16) + row * 8 + (chunk ^ (row % 8))] =
          make_uint4(packed[0], packed[1], packed[2], packed[3]);
    }
  }
}

}  // namespace sm90
}  // namespace cuda
}  // namespace tconv
