// Transposed convolution of many channels over few pixels on Hopper's tensor cores: a matrix product for each phase,
// D[128 output channels x N pixels] += W_tap[128 x 64] * X_tap[64 x N], whose pixels are gathered tap by tap. Where the
// other kernel (conv_transpose_hopper.cuh) has a line of pixels, with zeros between its rows, and reads a window once
// for all taps, this one has no pixel in a tile that is no output, and all phases, parts of output channels and runs of
// pixels side by side; it reads each pixel once a tap, 16 bytes at a time, from where gathered_pixels.cuh has packed
// it.
//
// A block computes one tile. Two warpgroups multiply, 64 output channels each; a third copies pixels, and weights in
// bulk, into a ring of stages of 64 input channels of a tap.
#pragma once

#include "conv_transpose_hopper.cuh"
#include "gathered_pixels.cuh"
#include "gathered_plan.h"

namespace tconv {
namespace cuda {
namespace hopper {

#include "chunk_copies.cuh"

template <typename Storage>
struct GatheredArgs {
  Plan plan;
  const uint4* pixels;  // gathered_pixels.cuh
  const uint4* weight_tiles;
  const float* inv_scale;
  EpilogueArgs<Storage> epilogue;
  Storage* out;
  int in_h, in_w, out_w, stride_h, stride_w, plane;  // plane: of the output
  // By place in the order of phases, longest first: the phase, its first tile, its pixels and runs of N of them.
  int phases[kMaxPhases], first_tiles[kMaxPhases], pixels_of[kMaxPhases], runs[kMaxPhases];
  FastDivisor by_image[kMaxPhases], by_width[kMaxPhases], by_runs[kMaxPhases];
};

// What a block computes.
struct GatheredTile {
  int place, phase, first_pixel, sweep, group;

  template <typename Args>
  __device__ __forceinline__ GatheredTile(const Args& args, int n) : place(0) {
    const int tile = blockIdx.x;
    while (place + 1 < args.plan.num_phases && args.first_tiles[place + 1] <= tile) ++place;
    const int of_phase = tile - args.first_tiles[place];
    const int part = static_cast<int>(args.by_runs[place].quotient(of_phase));
    phase = args.phases[place];
    first_pixel = (of_phase - part * args.runs[place]) * n;
    group = part / args.plan.num_sweeps, sweep = part - group * args.plan.num_sweeps;
  }
};

// Of a phase, an output; none beyond its pixels.
struct GatheredPixel {
  int image, row, col;
  bool there;

  template <typename Args>
  __device__ __forceinline__ GatheredPixel(const Args& args, int place, int pixel) {
    image = static_cast<int>(args.by_image[place].quotient(pixel));
    const int of_image = pixel - image * static_cast<int>(args.by_image[place].divisor);
    row = static_cast<int>(args.by_width[place].quotient(of_image));
    col = of_image - row * static_cast<int>(args.by_width[place].divisor);
    there = pixel < args.pixels_of[place];
  }
};

// A thread copies one chunk of 8 channels of every 16th pixel.
template <int N, typename Storage>
__device__ __forceinline__ void gather(const GatheredArgs<Storage>& args, const GatheredTile& tile, uint32_t stages,
                                       uint32_t full, uint32_t empty, int thread) {
  using Config = GatheredConfig;
  constexpr int kChunks = kPixelBytes / 16, kApart = Config::kProducers / kChunks, kPixels = N / kApart;
  const Plan& plan = args.plan;
  const Phase& phase = plan.phases[tile.phase];
  const int chunk = thread % kChunks, first = thread / kChunks;
  const int pixel_chunks = plan.num_groups * plan.num_ic_blocks * kChunks;
  constexpr int kNowhere = -2 * Config::kMostSide;
  int bases[kPixels], places[kPixels];  // of the pixel under tap (0, 0), in pixels; row and column, 16 bits each
#pragma unroll
  for (int i = 0; i < kPixels; ++i) {
    const GatheredPixel out(args, tile.place, tile.first_pixel + first + i * kApart);
    const int row = out.there ? out.row + plan.row_offset + phase.row_shift : kNowhere;
    const int col = out.col + plan.col_offset + phase.col_shift;
    bases[i] = (out.image * args.in_h + row) * args.in_w + col;
    places[i] = row * 65536 + (col & 0xFFFF);
  }
  const int num_taps = phase.taps_h * phase.taps_w;
  const int first_tile = (tile.group * plan.num_sweeps + tile.sweep) * plan.sweep_tiles + phase.weight_base;
  RingCursor stage;
  for (int tap_h = 0; tap_h < phase.taps_h; ++tap_h) {
    for (int tap_w = 0; tap_w < phase.taps_w; ++tap_w) {
      const int down = tap_h * plan.tap_step_h, right = tap_w * plan.tap_step_w;
      const uint4* sources[kPixels];
      uint32_t there = 0;
#pragma unroll
      for (int i = 0; i < kPixels; ++i) {
        const int row = (places[i] >> 16) + down, col = static_cast<int16_t>(places[i] & 0xFFFF) + right;
        const bool inside = row >= 0 && row < args.in_h && col >= 0 && col < args.in_w;
        there |= static_cast<uint32_t>(inside) << i;
        const int pixel = inside ? bases[i] + down * args.in_w + right : 0;
        sources[i] = args.pixels + (pixel * pixel_chunks + tile.group * plan.num_ic_blocks * kChunks + chunk);
      }
      for (int ic_block = 0; ic_block < plan.num_ic_blocks; ++ic_block) {
        const uint32_t weights = stages + stage.slot * Config::stage_bytes(N),
                       to = weights + Config::kBlocks * kTapBytes;
        const uint32_t arrived = full + 8 * stage.slot;
        mbarrier_wait(empty + 8 * stage.slot, stage.parity ^ 1);
        if (thread == 0) {
          constexpr int kBytes = Config::kBlocks * kTapBytes;
          const int64_t nth = first_tile + ic_block * num_taps + tap_h * phase.taps_w + tap_w;
          mbarrier_arrive_expect_bytes(arrived, kBytes);
          bulk_load(weights, args.weight_tiles + nth * (kBytes / 16), kBytes, arrived);
        }
#pragma unroll
        for (int i = 0; i < kPixels; ++i) {
          const int row = first + i * kApart;
          copy_chunk(to + row * kPixelBytes + (chunk ^ row % 8) * 16, sources[i], there >> i & 1);
          sources[i] += kChunks;
        }
        arrive_after_copies(arrived);
        stage.next(Config::stages(N));
      }
    }
  }
}

// Bias and element-wise chain of a warpgroup's 64 channels x N pixels, and their stores.
template <int N, typename Storage>
__device__ __forceinline__ void store_gathered(const GatheredArgs<Storage>& args, const GatheredTile& tile,
                                               const int* places, int warpgroup, float (&acc)[N / 2]) {
  const Plan& plan = args.plan;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const int first = (tile.sweep * GatheredConfig::kBlocks + warpgroup) * kBlockOC + warp * 16 + lane / 4;
  const int padded = plan.num_sweeps * GatheredConfig::kBlocks * kBlockOC;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int of_group = first + half * 8;
    if (of_group >= plan.out_channels_per_group) continue;
    const int channel = tile.group * plan.out_channels_per_group + of_group;
    const float inv_scale = args.inv_scale[tile.group * padded + of_group];
    const float bias = channel_bias<float>(args.epilogue, channel);
    Storage* const out = args.out + static_cast<int64_t>(channel) * args.plane;
#pragma unroll
    for (int j = 0; j < N / 8; ++j)
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int place = places[8 * j + 2 * (lane % 4) + e];
        const float value = acc[4 * j + 2 * half + e] * inv_scale + bias;
        if (place >= 0)
          out[place] = static_cast<Storage>(Epilogue::apply<float, Storage>(value, args.epilogue, channel));
      }
  }
}

template <int N, typename Storage>
__global__ void __launch_bounds__(GatheredConfig::kThreads, 1)
    conv_transpose_gathered_kernel(const __grid_constant__ GatheredArgs<Storage> args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Config = GatheredConfig;
  extern __shared__ __align__(1024) char storage[];
  const Plan& plan = args.plan;
  const GatheredTile tile(args, N);
  const Phase& phase = plan.phases[tile.phase];
  const uint32_t stages = smem_address(storage), full = stages + Config::barriers_at(N),
                 empty = full + 8 * Config::stages(N);
  if (stages % 1024 != 0) __trap();                                            // the swizzle goes by address bits
  int* const places = reinterpret_cast<int*>(storage + Config::places_at(N));  // of outputs, or -1
  if (threadIdx.x == 0) {
    for (int i = 0; i < Config::stages(N); ++i) {
      mbarrier_init(full + 8 * i, Config::kProducers + 1);  // and the weights' bytes
      mbarrier_init(empty + 8 * i, 4 * Config::kBlocks);
    }
    fence_barrier_init();
  }
  for (int i = threadIdx.x; i < N; i += Config::kThreads) {
    const GatheredPixel out(args, tile.place, tile.first_pixel + i);
    const int row = phase.out_first_h + out.row * args.stride_h, col = phase.out_first_w + out.col * args.stride_w;
    const int image = out.image * plan.num_groups * plan.out_channels_per_group * args.plane;
    places[i] = out.there ? image + row * args.out_w + col : -1;
  }
  __syncthreads();
  const int warpgroup = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0);
  await_previous_kernels();  // pixels, weights and their scales
  if (warpgroup == Config::kBlocks) {
    gather<N>(args, tile, stages, full, empty, threadIdx.x % 128);
    return;
  }
  constexpr bool kBFloat16 = std::is_same<Storage, __nv_bfloat16>::value;
  float acc[N / 2];
#pragma unroll
  for (int i = 0; i < N / 2; ++i) acc[i] = 0.0f;
  const int count = phase.taps_h * phase.taps_w * plan.num_ic_blocks;
  const bool elected = threadIdx.x % 32 == 0;
  RingCursor stage;
  int previous = -1;
#pragma unroll 1
  for (int i = 0; i < count; ++i) {
    mbarrier_wait(full + 8 * stage.slot, stage.parity);
    fence_async_proxy();  // pixels were written by ordinary copies
    const uint32_t weights = stages + stage.slot * Config::stage_bytes(N);
    const uint32_t a = uniform(descriptor_low(weights + warpgroup * kTapBytes));
    const uint32_t b = uniform(descriptor_low(weights + Config::kBlocks * kTapBytes));
    multiply_tap<N, kBlockIC / 16, kBFloat16>(acc, a, b);
    wgmma_wait<1>();  // the stage before this one
    if (previous >= 0 && elected) mbarrier_arrive(empty + 8 * previous);
    previous = stage.slot;
    stage.next(Config::stages(N));
  }
  wgmma_wait<0>();
  pin_registers(acc);
  store_gathered<N>(args, tile, places, warpgroup, acc);
#endif
}

}  // namespace hopper
}  // namespace cuda
}  // namespace tconv
