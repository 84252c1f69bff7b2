// The same packing as weight_gradient_pack.cuh's, of x and of the planes in one launch, where the 8 channels of a chunk
// are of one class: a block packs a run of rows of a strip, so that what does not change from row to row is worked out
// once, and the next row's values are under way while this one's image goes to memory. Bound by memory.
#pragma once

#ifdef TCONV_GRADIENT_CHAINS
#include "overlapped_launch.cuh"
#endif
#include "weight_gradient_pack.cuh"

namespace tconv {
namespace cuda {

struct PackRowsConfig {
  static constexpr int kThreads = PackConfig::kThreads;
  static constexpr int kRows = 8;         // of a block
  static constexpr int kStepPixels = 64;  // of a row, packed at a time: two for each lane
  static constexpr int kMostPairs = 2;    // steps of a row whose pixels come in pairs
  static constexpr int kImages = 2;       // in turns, so that one barrier a row is enough
  // Blocks of an SM. Rows of several images take more registers, and so do two rows under way, of 16-bit values, whose
  // one row is too little to wait for memory with.
  static constexpr int blocks(bool abreast, int value_bytes) { return abreast || value_bytes == 2 ? 3 : 4; }
};

template <typename Storage>
struct PackRowsArgs {
  PackArgs<Storage> tensors[2];  // x, planes
  int runs[2];
  bool pairs[2];            // neighbouring pixels lie side by side, and aligned
  unsigned sample_runs[2];  // of all strips; those of x, then of the planes, sample by sample
};

// Two pixels of 8 channels: neighbours, or 32 apart.
template <bool kPairs, bool kAbreast, typename Storage>
struct PackedPixels {
  struct alignas(2 * sizeof(Storage)) Pair {
    Storage a, b;
  };
  static constexpr int kApart = kPairs ? 1 : 32;
  Storage values[8][2];

  // Of a pixel, or of a pair: its column, or where it lies behind the first image's row; and is it there?
  struct Place {
    std::conditional_t<kAbreast, int64_t, int> at;
    bool there;

    __device__ __forceinline__ int64_t offset(const PackArgs<Storage>& args) const {
      return kAbreast ? at : at * args.from_w;
    }
  };

  __device__ __forceinline__ static int first_pixel() { return threadIdx.x % 32 * (kPairs ? 2 : 1); }

  // `line`: the first channel's row, of which `channels` are there; `second`: unless they are a pair.
  __device__ __forceinline__ void load(const PackArgs<Storage>& args, const Storage* line, int channels,
                                       const Place& first, const Place& second) {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      values[k][0] = values[k][1] = static_cast<Storage>(0.0f);
      const Storage* const from = line + k * args.from_c;
      if constexpr (kPairs) {
        if (first.there && k < channels) {
          const Pair pair = *reinterpret_cast<const Pair*>(from + first.at);
          values[k][0] = pair.a, values[k][1] = pair.b;
        }
      } else {
        if (first.there && k < channels) values[k][0] = from[first.offset(args)];
        if (second.there && k < channels) values[k][1] = from[second.offset(args)];
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

  template <bool kPairs, bool kAbreast>
  __device__ __forceinline__ void pack(const PackedPixels<kPairs, kAbreast, Storage>& pixels, int which,
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

// Pairs of 16-bit pixels stay the words that they lie in, of eight channels.
struct PairWords {
  uint32_t words[8];

  __device__ __forceinline__ void load(const void* from, int64_t step, int channels) {
    const char* channel = static_cast<const char*>(from);
#pragma unroll
    for (int k = 0; k < 8; ++k, channel += step) {
      words[k] = 0;
      if (k < channels) words[k] = *reinterpret_cast<const uint32_t*>(channel);
    }
  }

  // Lanes 4 to 7 of 8 begin with the second pixel: all 8 then write to other banks.
#ifdef TCONV_WALKS_DEPTH
  template <typename Args>
  __device__ __forceinline__ void store(const Args& args, unsigned char* image, int pixel, int chunk) const {
    if (args.narrow && chunk >= 4) return;
#else
  __device__ __forceinline__ void store(unsigned char* image, int pixel, int chunk) const {
#endif
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int second = i ^ (threadIdx.x / 4 & 1), at = pixel + second;
      const uint32_t halves = second == 0 ? 0x5410 : 0x7632;
#ifdef TCONV_WALKS_DEPTH
      *reinterpret_cast<uint4*>(image + args.chunk_at(at, chunk)) =
#else
      *reinterpret_cast<uint4*>(image + at * WeightGradientConfig::kPixelBytes + ((chunk ^ at) & 7) * 16) =
#endif
          make_uint4(__byte_perm(words[0], words[1], halves), __byte_perm(words[2], words[3], halves),
                     __byte_perm(words[4], words[5], halves), __byte_perm(words[6], words[7], halves));
    }
  }
};

template <bool kPairs, bool kAbreast, int kPieces, typename Storage>
__device__ __forceinline__ void pack_run(const PackArgs<Storage>& args, int runs, unsigned index,
                                         unsigned char* images) {
  using Config = PackRowsConfig;
  using Pixels = PackedPixels<kPairs, kAbreast, Storage>;
  const PackedOperand& packed = args.packed;
  // Neighbouring blocks have neighbouring strips: of a row, all is read at about the same time.
  const auto next_digit = [&index](int radix) {
    const unsigned quotient = index / static_cast<unsigned>(radix), digit = index - quotient * radix;
    index = quotient;
    return static_cast<int>(digit);
  };
  const int strip = next_digit(args.strips), run = next_digit(runs), block = next_digit(packed.blocks);
  const int group = next_digit(args.groups), sample = static_cast<int>(index);
  const RowPlace<kAbreast> row_place(args, sample, strip);
  const int chunk = threadIdx.x / 32;
  const int channel = block * WeightGradientConfig::kBlockChannels + chunk * 8;
#ifndef TCONV_WALKS_DEPTH
  const int channels = packed.channels_per_group - channel;  // of the chunk's 8; all, some or none
#endif
#ifdef TCONV_WALKS_DEPTH
  const int class_d = args.planes ? channel / args.class_channels : 0;
  int place = channel - class_d * args.class_channels, class_h = 0, class_w = 0;
#else
  int place = channel, class_h = 0, class_w = 0;
#endif
  if (args.classes > 1) {
#ifdef TCONV_WALKS_DEPTH
    const int both = place / args.channels_per_class;
    place -= both * args.channels_per_class;
#else
    const int both = channel / args.channels_per_class;
    place = channel - both * args.channels_per_class;
#endif
    class_h = both / args.classes_w;
    class_w = both - class_h * args.classes_w;
  }
#ifdef TCONV_WALKS_DEPTH
  const ImageSlice slice(args.images, args.first_image + sample, place, class_d);
  const int channels = slice.there ? packed.channels_per_group - channel : 0;  // of the chunk's 8
  const Storage* const source =
      args.from + slice.offset + static_cast<int64_t>(group * args.channels_per_class + place) * args.from_c;
#else
  const Storage* const source = args.from + row_place.first_image * args.from_n +
                                static_cast<int64_t>(group * args.channels_per_class + place) * args.from_c;
#endif
  const int first_pixel = Pixels::first_pixel();
  const int first_h = class_h * args.class_step_h - args.first_h;
  const int first_w = class_w * args.class_step_w - args.first_w;
  const int first_column = (strip * args.segment + first_pixel) * args.stride_w + first_w;
  // Of the pixel so far behind this lane's first.
  const auto find = [&](int ahead) {
    if constexpr (kAbreast) {
      const ImageColumn at = row_place[first_pixel + ahead];
      const int w = at.column * args.stride_w + first_w;
      return typename Pixels::Place{at.image * args.from_n + w * args.from_w,
                                    at.image < row_place.images && w >= 0 && w < args.size_w};
    } else {
      const int w = first_column + ahead * args.stride_w;
      return typename Pixels::Place{w, w >= 0 && w < args.size_w};
    }
  };
  const auto load = [&](Pixels& pixels, int row, int step) {
    const int h = row * args.stride_h + first_h, ahead = step * Config::kStepPixels;
    const bool there = h >= 0 && h < args.size_h;
    pixels.load(args, source + h * args.from_h, there ? channels : 0, find(ahead), find(ahead + Pixels::kApart));
  };

  const int bytes = static_cast<int>(packed.segment_bytes);
  const int first_row = run * Config::kRows, end_row = min(first_row + Config::kRows, packed.rows);
  unsigned char* to =
      args.to + ((static_cast<int64_t>((sample * args.groups + group) * packed.blocks + block) * args.strips + strip) *
                     packed.rows +
                 first_row) *
                    bytes;
  const auto copy_image = [&](const unsigned char* image) {
#pragma unroll(sizeof(Storage) == 2 ? 1 : 4)
    for (int i = threadIdx.x; i < bytes / 16; i += Config::kThreads)
      reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(image)[i];
    to += bytes;
  };

  if constexpr (kPairs && sizeof(Storage) == 2) {
    const typename Pixels::Place first = find(0), beyond = find(Config::kStepPixels);
    const Storage* const lines[] = {source + first.offset(args), source + beyond.offset(args)};
    const int64_t step = args.from_c * static_cast<int64_t>(sizeof(Storage));
    const auto load_row = [&](PairWords& words, int row, int which) {
      const int h = row * args.stride_h + first_h;
      const bool there = h >= 0 && h < args.size_h && row < end_row && (which == 0 ? first.there : beyond.there);
      words.load(lines[which] + h * args.from_h, step, there ? channels : 0);
    };
    // Under way: two rows of the first 64 pixels, one of those behind them.
    PairWords firsts[2], beyonds;
    load_row(firsts[0], first_row, 0);
    load_row(beyonds, first_row, 1);
    load_row(firsts[1], first_row + 1, 0);
#pragma unroll 1
    for (int row = first_row; row < end_row;) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        unsigned char* const image = images + i * bytes;
#ifdef TCONV_WALKS_DEPTH
        if (first_pixel < packed.segment_pixels) firsts[i].store(args, image, first_pixel, chunk);
#else
        if (first_pixel < packed.segment_pixels) firsts[i].store(image, first_pixel, chunk);
#endif
        load_row(firsts[i], row + 2, 0);
        if (first_pixel + Config::kStepPixels < packed.segment_pixels) {
#ifdef TCONV_WALKS_DEPTH
          beyonds.store(args, image, first_pixel + Config::kStepPixels, chunk);
#else
          beyonds.store(image, first_pixel + Config::kStepPixels, chunk);
#endif
          load_row(beyonds, row + 1, 1);
        }
        __syncthreads();
        copy_image(image);
        if (++row == end_row) return;
      }
    }
    return;
  }

  ChunkPacker<kPieces, Storage> packer;
  if constexpr (packer.kContainers) packer.scale = args.scale();
  Pixels pixels;
  load(pixels, first_row, 0);
#pragma unroll 1
  for (int row = first_row; row < end_row; ++row) {
    unsigned char* const image = images + (row & 1) * bytes;
    packer.begin_row();
#pragma unroll 1
    for (int step = 0;;) {
#pragma unroll
      for (int which = 0; which < 2; ++which) {
        const int pixel = first_pixel + step * Config::kStepPixels + which * Pixels::kApart;
        uint32_t words[kPieces][4];
        packer.pack(pixels, which, words);
#ifdef TCONV_WALKS_DEPTH
        if (pixel < packed.segment_pixels && (!args.narrow || chunk < 4))
#else
        if (pixel < packed.segment_pixels)
#endif
#pragma unroll
          for (int i = 0; i < kPieces; ++i)
#ifdef TCONV_WALKS_DEPTH
            *reinterpret_cast<uint4*>(image + args.chunk_at(i * packed.segment_pixels + pixel, chunk)) =
#else
            *reinterpret_cast<uint4*>(image + (i * packed.segment_pixels + pixel) * WeightGradientConfig::kPixelBytes +
                                      ((chunk ^ pixel) & 7) * 16) =
#endif
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
          const typename Pixels::Place at = find(pixel - first_pixel);
          if (!at.there) continue;
#pragma unroll 1
          for (int k = 0; k < min(channels, 8); ++k) {
            const float v = source[h * args.from_h + k * args.from_c + at.offset(args)];
            subnormal |= v != 0.0f && fabsf(v * packer.scale) < 0x1p-14f;
          }
        }
        return subnormal;
      });
    }
    if (row + 1 < end_row) load(pixels, row + 1, 0);
    __syncthreads();
    copy_image(image);
  }
}

// kAbreast: a row of segments is of several images.
template <bool kAbreast, int kPieces, typename Storage>
__global__ void __launch_bounds__(PackRowsConfig::kThreads, PackRowsConfig::blocks(kAbreast, sizeof(Storage)))
    pack_rows_kernel(const __grid_constant__ PackRowsArgs<Storage> args) {
#ifdef TCONV_GRADIENT_CHAINS
  await_previous_kernels();
#endif
  unsigned char* const images = dynamic_smem();
#ifdef TCONV_GRADIENT_CHAINS
  // From the last sample on: the first one's pixels are read next, and found in L2.
  const unsigned of_x = args.sample_runs[0], nth = gridDim.x - 1 - blockIdx.x;
  const unsigned sample = nth / (of_x + args.sample_runs[1]);
  const unsigned of_sample = nth - sample * (of_x + args.sample_runs[1]);
#else
  const unsigned of_x = args.sample_runs[0], sample = blockIdx.x / (of_x + args.sample_runs[1]);
  const unsigned of_sample = blockIdx.x - sample * (of_x + args.sample_runs[1]);
#endif
  const bool planes = of_sample >= of_x;
  const unsigned index = sample * args.sample_runs[planes] + of_sample - (planes ? of_x : 0);
  if (args.pairs[planes])
    pack_run<true, kAbreast, kPieces>(args.tensors[planes], args.runs[planes], index, images);
  else
    pack_run<false, kAbreast, kPieces>(args.tensors[planes], args.runs[planes], index, images);
}

}  // namespace cuda
}  // namespace tconv
