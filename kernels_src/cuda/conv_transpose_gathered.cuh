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
#ifdef TCONV_WALKS_DEPTH
  // Images are output slices of volumes (depth_walk.h), whose pixels are packed once for all depth taps; of two
  // dimensions each is a volume. Strides are of the output.
  FastDivisor by_slices;
  int in_depth, depth_taps, tap_slices, first_slices[kMostResidues];
  int stride_n, stride_d, channel_stride;
#endif

  // From channel to channel of the output.
  __device__ __forceinline__ int64_t channel_places() const {
#ifdef TCONV_WALKS_DEPTH
    return channel_stride;
#else
    return plane;
#endif
  }

  // Blocks of 64 channels of a tap.
  __device__ __forceinline__ int tap_blocks() const {
#ifdef TCONV_WALKS_DEPTH
    return plan.tap_blocks;
#else
    return plan.num_ic_blocks;
#endif
  }
};

// What a block computes.
struct GatheredTile {
  int place, phase, first_pixel, sweep, group;
#ifdef TCONV_WALKS_DEPTH
  int residue;  // in depth; groups are those of one residue
#endif

  template <typename Args>
  __device__ __forceinline__ GatheredTile(const Args& args, int n) : place(0) {
    const int tile = blockIdx.x;
    while (place + 1 < args.plan.num_phases && args.first_tiles[place + 1] <= tile) ++place;
    const int of_phase = tile - args.first_tiles[place];
    const int part = static_cast<int>(args.by_runs[place].quotient(of_phase));
    phase = args.phases[place];
    first_pixel = (of_phase - part * args.runs[place]) * n;
    group = part / args.plan.num_sweeps, sweep = part - group * args.plan.num_sweeps;
#ifdef TCONV_WALKS_DEPTH
    residue = group & (1 << args.plan.residue_bits) - 1;
    group >>= args.plan.residue_bits;
#endif
  }

  // Of the sweep's weights, in the order in which they lie.
  __device__ __forceinline__ int first_weights(const Plan& plan) const {
#ifdef TCONV_WALKS_DEPTH
    const int nth = group << plan.residue_bits | residue;
#else
    const int nth = group;
#endif
    return (nth * plan.num_sweeps + sweep) * plan.sweep_tiles + plan.phases[phase].weight_base;
  }
};

// Of a phase, an output; none beyond its pixels.
struct GatheredPixel {
  int image, row, col;
  bool there;
#ifdef TCONV_WALKS_DEPTH
  int slice;  // of those of its residue; image is the volume's
#endif

  template <typename Args>
  __device__ __forceinline__ GatheredPixel(const Args& args, int place, int pixel) {
    image = static_cast<int>(args.by_image[place].quotient(pixel));
    const int of_image = pixel - image * static_cast<int>(args.by_image[place].divisor);
    row = static_cast<int>(args.by_width[place].quotient(of_image));
    col = of_image - row * static_cast<int>(args.by_width[place].divisor);
    there = pixel < args.pixels_of[place];
#ifdef TCONV_WALKS_DEPTH
    const int volume = static_cast<int>(args.by_slices.quotient(image));
    slice = image - volume * static_cast<int>(args.by_slices.divisor);
    image = volume;
#endif
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
  const int tap_blocks = args.tap_blocks();
#ifdef TCONV_WALKS_DEPTH
  const int pixel_chunks = (plan.num_groups >> plan.residue_bits) * tap_blocks * kChunks;
  const int depth_taps = args.depth_taps, plane = args.in_h * args.in_w;
  int slices[kPixels];  // under depth tap 0
#else
  const int pixel_chunks = plan.num_groups * tap_blocks * kChunks;
  constexpr int depth_taps = 1;
#endif
  constexpr int kNowhere = -2 * Config::kMostSide;
  int bases[kPixels], places[kPixels];  // of the pixel under tap (0, 0), in pixels; row and column, 16 bits each
#pragma unroll
  for (int i = 0; i < kPixels; ++i) {
    const GatheredPixel out(args, tile.place, tile.first_pixel + first + i * kApart);
    const int row = out.there ? out.row + plan.row_offset + phase.row_shift : kNowhere;
    const int col = out.col + plan.col_offset + phase.col_shift;
#ifdef TCONV_WALKS_DEPTH
    bases[i] = (out.image * args.in_depth * args.in_h + row) * args.in_w + col;  // of its volume's first slice
    slices[i] = out.slice + args.first_slices[tile.residue];
#else
    bases[i] = (out.image * args.in_h + row) * args.in_w + col;
#endif
    places[i] = row * 65536 + (col & 0xFFFF);
  }
  const int num_taps = phase.taps_h * phase.taps_w;
  const int first_tile = tile.first_weights(plan);
  RingCursor stage;
  for (int line = 0; line < depth_taps * phase.taps_h; ++line) {
    const int depth_tap = depth_taps == 1 ? 0 : line / phase.taps_h, tap_h = line - depth_tap * phase.taps_h;
    for (int tap_w = 0; tap_w < phase.taps_w; ++tap_w) {
      const int down = tap_h * plan.tap_step_h, right = tap_w * plan.tap_step_w;
      int sources[kPixels];  // chunks
      uint32_t there = 0;
#pragma unroll
      for (int i = 0; i < kPixels; ++i) {
        const int row = (places[i] >> 16) + down, col = static_cast<int16_t>(places[i] & 0xFFFF) + right;
#ifdef TCONV_WALKS_DEPTH
        const int slice = slices[i] + depth_tap * args.tap_slices;
        const bool inside =
            row >= 0 && row < args.in_h && col >= 0 && col < args.in_w && slice >= 0 && slice < args.in_depth;
        const int pixel = inside ? bases[i] + slice * plane + down * args.in_w + right : 0;
#else
        const bool inside = row >= 0 && row < args.in_h && col >= 0 && col < args.in_w;
        const int pixel = inside ? bases[i] + down * args.in_w + right : 0;
#endif
        there |= static_cast<uint32_t>(inside) << i;
        sources[i] = pixel * pixel_chunks + tile.group * tap_blocks * kChunks + chunk;
      }
      for (int ic_block = depth_tap * tap_blocks; ic_block < (depth_tap + 1) * tap_blocks; ++ic_block) {
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
          copy_chunk(to + row * kPixelBytes + (chunk ^ row % 8) * 16, args.pixels + sources[i], there >> i & 1);
          sources[i] += kChunks;
        }
        arrive_after_copies(arrived);
        stage.next(Config::stages(N));
      }
    }
  }
}

// Stores neighbours, together where they are aligned.
template <typename Storage>
__device__ __forceinline__ void store_pair(Storage* to, float first, float second, bool aligned) {
  if (!aligned) {
    to[0] = static_cast<Storage>(first), to[1] = static_cast<Storage>(second);
  } else if constexpr (sizeof(Storage) == 4) {
    *reinterpret_cast<float2*>(to) = make_float2(first, second);
  } else {
    *reinterpret_cast<uint32_t*>(to) = pack_pair(static_cast<Storage>(first), static_cast<Storage>(second));
  }
}

// The same of a warpgroup's 32 channels x N pairs of columns.
template <int N, typename Storage>
__device__ __forceinline__ void store_gathered_pairs(const GatheredArgs<Storage>& args, const GatheredTile& tile,
                                                     const int* places, int first, float (&acc)[N / 2]) {
  const Plan& plan = args.plan;
  const int lane = threadIdx.x % 32, of_group = plan.channel_of_row(first);
  if (of_group >= plan.out_channels_per_group) return;
  const int channel = tile.group * plan.out_channels_per_group + of_group;
  const float inv_scale = args.inv_scale[tile.group * plan.num_sweeps * GatheredConfig::kBlocks * kBlockOC + first];
  const float bias = channel_bias<float>(args.epilogue, channel);
  Storage* const out = args.out + channel * args.channel_places();
  const bool aligned = reinterpret_cast<uintptr_t>(args.out) % (2 * sizeof(Storage)) == 0;
#pragma unroll
  for (int j = 0; j < N / 8; ++j)
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int place = places[8 * j + 2 * (lane % 4) + e];
      float both[2];
#pragma unroll
      for (int half = 0; half < 2; ++half)
        both[half] =
            Epilogue::apply<float, Storage>(acc[4 * j + 2 * half + e] * inv_scale + bias, args.epilogue, channel);
      if (place >= 0) store_pair(out + place, both[0], both[1], aligned);
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
  if (plan.pair_columns != 0) return store_gathered_pairs<N>(args, tile, places, first, acc);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int of_group = first + half * 8;
    if (of_group >= plan.out_channels_per_group) continue;
    const int channel = tile.group * plan.out_channels_per_group + of_group;
    const float inv_scale = args.inv_scale[tile.group * padded + of_group];
    const float bias = channel_bias<float>(args.epilogue, channel);
    Storage* const out = args.out + channel * args.channel_places();
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
#ifdef TCONV_WALKS_DEPTH
    const int image = out.image * args.stride_n + out.slice * args.stride_d + tile.residue * args.plane;
#else
    const int image = out.image * plan.num_groups * plan.out_channels_per_group * args.plane;
#endif
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
