// The weight gradient of a kernel of one tap on Hopper, fp32 in containers: a product for each pair of channels that is
// read, so that packing is most of the work. Here a block packs what it multiplies, in shared memory; g's image goes to
// memory, too, where the input gradient wants it.
//
// A block has all channels of a group, up to kMostBlocks blocks of 64 of either operand, and its share of the segments
// (weight_gradient_layout.h). A warp packs a chunk of 8 channels of each block; a warpgroup multiplies a block of x,
// or, of a single one, half of a segment's pixels, by all of g.
#pragma once

#include "weight_gradient_hopper.cuh"
#include "weight_gradient_pack_rows.cuh"
#include "weight_gradient_sums.cuh"

namespace tconv {
namespace cuda {
namespace pixels {

struct OneTapConfig {
  static constexpr int kThreads = 256;
  static constexpr int kMostBlocks = 2;
  static constexpr int kSegmentBytes = WeightGradientConfig::kMaxSegment * WeightGradientConfig::kPixelBytes;
  static constexpr int kImages = 2;  // in turns, so that one barrier a segment is enough

  static constexpr int smem_bytes(int blocks) { return kImages * blocks * kSegmentBytes; }
};

struct OneTapArgs {
  PackArgs<float> x, planes;  // planes.to: null where packed planes are not wanted
  int num_samples, num_splits;
  float* parts;    // [split][group][warpgroup][block of planes], a tile each
  int accumulate;  // parts hold sums of earlier samples
};

// A thread's two neighbouring pixels of 8 channels of a block.
struct OneTapPixels {
  PackedPixels<true, false, float> pixels;

  __device__ __forceinline__ void load(const PackArgs<float>& args, int sample, int group, int row, int strip,
                                       int block) {
    const int channel = block * WeightGradientConfig::kBlockChannels + threadIdx.x / 32 * 8;
    const int h = row * args.stride_h - args.first_h;
    const int w = strip * WeightGradientConfig::kMaxSegment + threadIdx.x % 32 * 2 - args.first_w;
    const bool there = h >= 0 && h < args.size_h && w >= 0 && w < args.size_w;
    const float* const line = args.from + sample * args.from_n +
                              static_cast<int64_t>(group * args.channels_per_class + channel) * args.from_c +
                              h * args.from_h;
    const PackedPixels<true, false, float>::Place place = {w, there};
    pixels.load(args, line, args.packed.channels_per_group - channel, place, place);
  }

  __device__ __forceinline__ void pack(float scale, GuardState* guard, unsigned char* image) const {
    ChunkPacker<1, float> packer;
    packer.scale = scale;
    packer.begin_row();
    const int chunk = threadIdx.x / 32;
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      uint32_t words[1][4];
      packer.pack(pixels, which, words);
      const int pixel = threadIdx.x % 32 * 2 + which;
      *reinterpret_cast<uint4*>(image + pixel * WeightGradientConfig::kPixelBytes + ((chunk ^ pixel) & 7) * 16) =
          make_uint4(words[0][0], words[0][1], words[0][2], words[0][3]);
    }
    guard_packed(packer.largest, guard, [&] {
      bool subnormal = false;
#pragma unroll
      for (int k = 0; k < 8; ++k)
#pragma unroll
        for (int which = 0; which < 2; ++which) {
          const float v = pixels.values[k][which];
          subnormal |= v != 0.0f && fabsf(v * scale) < 0x1p-14f;
        }
      return subnormal;
    });
  }
};

// A block's segments, those of a row of pixels one after the other.
struct OneTapCursor {
  int sample, row, strip;

  __device__ __forceinline__ OneTapCursor(const PackArgs<float>& x, int64_t nth) {
    const int64_t line = nth / x.strips;
    strip = static_cast<int>(nth - line * x.strips);
    sample = static_cast<int>(line / x.packed.rows);
    row = static_cast<int>(line - static_cast<int64_t>(sample) * x.packed.rows);
  }
  __device__ __forceinline__ void next(const PackArgs<float>& x) {
    if (++strip < x.strips) return;
    strip = 0;
    if (++row < x.packed.rows) return;
    row = 0;
    ++sample;
  }
};

template <int kXBlocks, int kPlanesBlocks>
__global__ void __launch_bounds__(OneTapConfig::kThreads, 1)
    weight_gradient_one_tap_kernel(const __grid_constant__ OneTapArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Config = OneTapConfig;
  constexpr int kBlocks = kXBlocks + kPlanesBlocks;
  constexpr int kProducts = kXBlocks == 2 ? 4 : 2;  // of a warpgroup, 16 pixels each
  extern __shared__ __align__(1024) char one_tap_storage[];
  unsigned char* const images = reinterpret_cast<unsigned char*>(one_tap_storage);
  if (smem_address(images) % 1024 != 0) __trap();  // the swizzle goes by address bits
  const int groups = args.x.groups, split = blockIdx.x / groups, group = blockIdx.x - split * groups;
  const int warpgroup = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0);
  const int64_t segments = static_cast<int64_t>(args.num_samples) * args.x.packed.rows * args.x.strips;
  const int64_t begin = segments * split / args.num_splits, end = segments * (split + 1) / args.num_splits;
  const float x_scale = args.x.scale(), planes_scale = args.planes.scale();
  GuardState* const guard = &args.x.state->guard;
  float4* const sums = reinterpret_cast<float4*>(args.parts + (static_cast<int64_t>(blockIdx.x) * 2 + warpgroup) *
                                                                  kPlanesBlocks * WeightGradientConfig::kTileValues) +
                       threadIdx.x % 128;

  float acc[kPlanesBlocks * 32];
#pragma unroll
  for (int i = 0; i < kPlanesBlocks * 32; ++i) acc[i] = 0.0f;
  OneTapPixels pixels[kBlocks];
  OneTapCursor at(args.x, begin), loading = at;
  const auto load_next = [&] {
#pragma unroll
    for (int i = 0; i < kBlocks; ++i)
      pixels[i].load(i < kXBlocks ? args.x : args.planes, loading.sample, group, loading.row, loading.strip,
                     i < kXBlocks ? i : i - kXBlocks);
    loading.next(args.x);
  };
  if (begin < end) load_next();
  bool add = args.accumulate != 0;
  int until_promotion = WeightGradientConfig::kPromoteRows;
#pragma unroll 1
  for (int64_t nth = begin; nth < end; ++nth, at.next(args.x)) {
    unsigned char* const image = images + (nth & 1) * (kBlocks * Config::kSegmentBytes);
    unsigned char* const planes = image + kXBlocks * Config::kSegmentBytes;
#pragma unroll
    for (int i = 0; i < kBlocks; ++i)
      pixels[i].pack(i < kXBlocks ? x_scale : planes_scale, guard, image + i * Config::kSegmentBytes);
    if (nth + 1 < end) load_next();
    hopper::fence_async_proxy();
    __syncthreads();
    const int x_block = kXBlocks == 2 ? warpgroup : 0;
    const uint32_t first = kXBlocks == 2 ? 0 : warpgroup * kProducts * kProductStep;
    const uint32_t a = hopper::uniform(pixels_low(smem_address(image) + x_block * Config::kSegmentBytes, 1024) + first);
    const uint32_t b = hopper::uniform(pixels_low(smem_address(planes), Config::kSegmentBytes) + first);
    multiply_pixels_of_row<kProducts, kPlanesBlocks, false>(acc, a, b);
    if (args.planes.to != nullptr) {
#pragma unroll
      for (int i = 0; i < kPlanesBlocks; ++i) {
        const int64_t block = (static_cast<int64_t>(at.sample) * groups + group) * kPlanesBlocks + i;
        uint4* const to = reinterpret_cast<uint4*>(args.planes.to +
                                                   ((block * args.x.strips + at.strip) * args.x.packed.rows + at.row) *
                                                       Config::kSegmentBytes);
        const uint4* const from = reinterpret_cast<const uint4*>(planes + i * Config::kSegmentBytes);
#pragma unroll
        for (int chunk = 0; chunk < Config::kSegmentBytes / 16; chunk += Config::kThreads)
          to[chunk + threadIdx.x] = from[chunk + threadIdx.x];
      }
    }
    hopper::wgmma_wait<0>();
    if (--until_promotion == 0 || nth + 1 == end) {
      hopper::pin_registers(acc);
#pragma unroll
      for (int i = 0; i < kPlanesBlocks * 8; ++i) {
        float4 sum = make_float4(acc[4 * i], acc[4 * i + 1], acc[4 * i + 2], acc[4 * i + 3]);
        if (add) {
          const float4 before = sums[i * 128];
          sum.x += before.x, sum.y += before.y, sum.z += before.z, sum.w += before.w;
        }
        sums[i * 128] = sum;
        acc[4 * i] = acc[4 * i + 1] = acc[4 * i + 2] = acc[4 * i + 3] = 0.0f;
      }
      add = true;
      until_promotion = WeightGradientConfig::kPromoteRows;
    }
  }
#endif
}

}  // namespace pixels
}  // namespace cuda
}  // namespace tconv
