// The same packing as weight_gradient_pack.cuh's, of x and of the planes in one launch, where the 8 channels of a chunk
// are of one class: a block packs a run of rows of a strip, so that what does not change from row to row is worked out
// once, and the next row's values are under way while this one's image goes to memory. Bound by memory.
#pragma once

#include "weight_gradient_pack.cuh"

namespace tconv {
namespace cuda {

struct PackRowsConfig {
  static constexpr int kThreads = PackConfig::kThreads;
  static constexpr int kRows = 8;         // of a block
  static constexpr int kStepPixels = 64;  // of a row, packed at a time: two for each lane
  static constexpr int kImages = 2;       // in turns, so that one barrier a row is enough
};

template <typename Storage>
struct PackRowsArgs {
  PackArgs<Storage> tensors[2];  // x, planes
  int runs[2];
  bool pairs[2];          // neighbouring pixels lie side by side, and aligned
  unsigned planes_block;  // the first of the planes
};

// Two pixels of 8 channels: neighbours, or 32 apart.
template <bool kPairs, typename Storage>
struct PackedPixels {
  struct alignas(2 * sizeof(Storage)) Pair {
    Storage a, b;
  };
  static constexpr int kApart = kPairs ? 1 : 32;
  Storage values[8][2];

  __device__ __forceinline__ static int first_pixel() { return threadIdx.x % 32 * (kPairs ? 2 : 1); }

  // `line`: column 0 of the first channel's row, of which `channels` are there.
  __device__ __forceinline__ void load(const PackArgs<Storage>& args, const Storage* line, int channels, int column) {
    const int apart = kApart * args.stride_w;
    const bool a = column >= 0 && column < args.size_w, b = column + apart >= 0 && column + apart < args.size_w;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      values[k][0] = values[k][1] = static_cast<Storage>(0.0f);
      const Storage* const from = line + k * args.from_c;
      if constexpr (kPairs) {
        if (a && k < channels) {
          const Pair pair = *reinterpret_cast<const Pair*>(from + column);
          values[k][0] = pair.a, values[k][1] = pair.b;
        }
      } else {
        if (a && k < channels) values[k][0] = from[column * args.from_w];
        if (b && k < channels) values[k][1] = from[(column + apart) * args.from_w];
      }
    }
  }
};

// What a row's image is made of, 16 bytes for each piece of a pixel.
template <int kPieces, typename Storage>
struct ChunkPacker {
  static constexpr bool kContainers = sizeof(Storage) == 4 && kPieces == 1;
  float scale;
  __half2 largest;
  uint32_t any_bits;

  __device__ __forceinline__ void begin_row() {
    largest = __floats2half2_rn(0.0f, 0.0f);
    any_bits = 0;
  }

  template <bool kPairs>
  __device__ __forceinline__ void pack(const PackedPixels<kPairs, Storage>& pixels, int which,
                                       uint32_t (&words)[kPieces][4]) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const Storage a = pixels.values[2 * k][which], b = pixels.values[2 * k + 1][which];
      if constexpr (kContainers) {
        any_bits |= __float_as_uint(a) | __float_as_uint(b);
        words[0][k] = pack_scaled_inputs(a, b, largest, scale);
      } else if constexpr (kPieces == 3) {
        const BFloat16Pieces first(a), second(b);
#pragma unroll
        for (int i = 0; i < 3; ++i)
          words[i][k] = pack_pair(__float2bfloat16_rn(first.pieces[i]), __float2bfloat16_rn(second.pieces[i]));
      } else {
        words[0][k] = pack_pair(a, b);
      }
    }
  }
};

template <bool kPairs, int kPieces, typename Storage>
__device__ __forceinline__ void pack_run(const PackArgs<Storage>& args, int runs, unsigned index,
                                         unsigned char* images) {
  using Config = PackRowsConfig;
  using Pixels = PackedPixels<kPairs, Storage>;
  const PackedOperand& packed = args.packed;
  // Neighbouring blocks have neighbouring strips: of a row, all is read at about the same time.
  const auto next_digit = [&index](int radix) {
    const unsigned quotient = index / static_cast<unsigned>(radix), digit = index - quotient * radix;
    index = quotient;
    return static_cast<int>(digit);
  };
  const int strip = next_digit(args.strips), run = next_digit(runs), block = next_digit(packed.blocks);
  const int group = next_digit(args.groups), sample = static_cast<int>(index);
  const int chunk = threadIdx.x / 32;
  const int channel = block * WeightGradientConfig::kBlockChannels + chunk * 8;
#ifndef TCONV_WALKS_DEPTH
  const int channels = packed.channels_per_group - channel;  // of the chunk's 8; all, some or none
#endif
  int place = channel, class_h = 0, class_w = 0;
  if (args.classes > 1) {
    const int both = channel / args.channels_per_class;
    place = channel - both * args.channels_per_class;
    class_h = both / args.classes_w;
    class_w = both - class_h * args.classes_w;
  }
#ifdef TCONV_WALKS_DEPTH
  const ImageSlice slice(args.images, args.first_image + sample, place);
  const int channels = slice.there ? packed.channels_per_group - channel : 0;  // of the chunk's 8
  const Storage* const source =
      args.from + slice.offset + static_cast<int64_t>(group * args.channels_per_class + place) * args.from_c;
#else
  const Storage* const source =
      args.from + sample * args.from_n + static_cast<int64_t>(group * args.channels_per_class + place) * args.from_c;
#endif
  const int first_pixel = Pixels::first_pixel();
  const int first_h = class_h * args.class_step_h - args.first_h;
  const int first_column =
      (strip * args.segment + first_pixel) * args.stride_w + class_w * args.class_step_w - args.first_w;
  const auto load = [&](Pixels& pixels, int row, int step) {
    const int h = row * args.stride_h + first_h;
    const bool there = h >= 0 && h < args.size_h;
    pixels.load(args, source + h * args.from_h, there ? channels : 0,
                first_column + step * Config::kStepPixels * args.stride_w);
  };

  ChunkPacker<kPieces, Storage> packer;
  if constexpr (packer.kContainers) packer.scale = power_of_two(scale_exponent(args.state->largest[args.scale_index]));
  const int bytes = static_cast<int>(packed.segment_bytes);
  const int first_row = run * Config::kRows, end_row = min(first_row + Config::kRows, packed.rows);
  unsigned char* to =
      args.to + ((static_cast<int64_t>((sample * args.groups + group) * packed.blocks + block) * args.strips + strip) *
                     packed.rows +
                 first_row) *
                    bytes;
  Pixels pixels;
  load(pixels, first_row, 0);
#pragma unroll 1
  for (int row = first_row; row < end_row; ++row, to += bytes) {
    unsigned char* const image = images + (row & 1) * bytes;
    packer.begin_row();
#pragma unroll 1
    for (int step = 0;;) {
#pragma unroll
      for (int which = 0; which < 2; ++which) {
        const int pixel = first_pixel + step * Config::kStepPixels + which * Pixels::kApart;
        uint32_t words[kPieces][4];
        packer.pack(pixels, which, words);
        if (pixel < packed.segment_pixels)
#pragma unroll
          for (int i = 0; i < kPieces; ++i)
            *reinterpret_cast<uint4*>(image + (i * packed.segment_pixels + pixel) * WeightGradientConfig::kPixelBytes +
                                      ((chunk ^ pixel) & 7) * 16) =
                make_uint4(words[i][0], words[i][1], words[i][2], words[i][3]);
      }
      if (++step * Config::kStepPixels >= packed.segment_pixels) break;
      load(pixels, row, step);
    }
    if constexpr (packer.kContainers) {
      // Where all of a row is small, its values are read again.
      guard_packed(packer.largest, &args.state->guard, [&] {
        bool subnormal = false;
        const int h = row * args.stride_h + first_h;
        const bool zeros = !__any_sync(0xFFFFFFFFu, packer.any_bits << 1 != 0);
        if (zeros || h < 0 || h >= args.size_h) return false;
#pragma unroll 1
        for (int pixel = threadIdx.x % 32; pixel < packed.segment_pixels; pixel += 32) {
          const int column = first_column + (pixel - first_pixel) * args.stride_w;
          if (column < 0 || column >= args.size_w) continue;
#pragma unroll 1
          for (int k = 0; k < min(channels, 8); ++k) {
            const float v = source[h * args.from_h + k * args.from_c + column * args.from_w];
            subnormal |= v != 0.0f && fabsf(v * packer.scale) < 0x1p-14f;
          }
        }
        return subnormal;
      });
    }
    if (row + 1 < end_row) load(pixels, row + 1, 0);
    __syncthreads();
    for (int i = threadIdx.x; i < bytes / 16; i += Config::kThreads)
      reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(image)[i];
  }
}

template <int kPieces, typename Storage>
__global__ void __launch_bounds__(PackRowsConfig::kThreads, 4)
    pack_rows_kernel(const __grid_constant__ PackRowsArgs<Storage> args) {
  unsigned char* const images = dynamic_smem();
  const bool planes = blockIdx.x >= args.planes_block;
  const unsigned index = planes ? blockIdx.x - args.planes_block : blockIdx.x;
  if (args.pairs[planes])
    pack_run<true, kPieces>(args.tensors[planes], args.runs[planes], index, images);
  else
    pack_run<false, kPieces>(args.tensors[planes], args.runs[planes], index, images);
}

}  // namespace cuda
}  // namespace tconv
