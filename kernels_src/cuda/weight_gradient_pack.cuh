// x or g -> segments of 16-bit pixels (weight_gradient_layout.h). fp32 becomes fp16 containers, scaled and guarded, or
// three bf16 pieces; fp16 and bf16 stay what they are. A block packs one segment: warps are chunks of 8 channels, lanes
// neighbouring pixels.
#pragma once

#include "check.h"
#include "fast_divisor.h"
#include "fp16_containers.cuh"
#include "gradient_scales.cuh"
#include "mma_sync.cuh"
#include "weight_gradient_layout.h"
#ifdef TCONV_WALKS_DEPTH
#include "volume_images.cuh"
#endif

namespace tconv {
namespace cuda {

// Device-side words of a call; cleared before its kernels run.
struct GradientState {
  GuardState guard;  // and what g's scale follows from
  unsigned largest_of_x;

  __device__ __forceinline__ int x_exponent() const { return scale_exponent(largest_of_x); }
  __device__ __forceinline__ int grad_exponent() const { return scale_exponent(guard.largest); }
};

struct PackConfig {
  static constexpr int kThreads = 256;
  static_assert(kThreads / 32 * 16 == WeightGradientConfig::kPixelBytes, "a warp has one 16-byte chunk of a pixel");
};

// Of the tensor: value (n, channel, h, w) of the planes lies at row h*stride_h + class_h*class_h_step - first_h, and so
// the column. x is a plane of itself, with strides of one and a single class.
template <typename Storage>
struct PackArgs {
  const Storage* from;
  int64_t from_n, from_c, from_h, from_w;  // strides in elements
  int size_h, size_w;                      // of the tensor
  int stride_h, stride_w, class_step_h, class_step_w, first_h, first_w;
  int classes, classes_w, channels_per_class;
  int groups, strips, segment;  // pixels from one segment's first to the next one's
  int abreast, count;           // images in a row of segments; all that are packed
  FastDivisor by_pitch;         // from one image to the next
  PackedOperand packed;
  unsigned num_segments;  // of the images that are packed
  unsigned char* to;
  GradientState* state;  // containers: scale and guard
  bool planes;           // of g; else x
#ifdef TCONV_WALKS_DEPTH
  VolumeImages images;  // for from_n
  int first_image;      // that is packed
  int class_channels;   // of a class in depth; `classes` and channels are within one
  bool narrow;          // as the layout has it

  // Where 16 bytes of a pixel lie in a segment's image.
  __device__ __forceinline__ int chunk_at(int pixel, int chunk) const {
    return narrow ? pixel * (WeightGradientConfig::kPixelBytes / 2) + ((chunk ^ pixel / 2) & 3) * 16
                  : pixel * WeightGradientConfig::kPixelBytes + ((chunk ^ pixel) & 7) * 16;
  }
#endif

  __device__ __forceinline__ float scale() const {
    return power_of_two(planes ? state->grad_exponent() : state->x_exponent());
  }
};

// v = first + second + third, 8 significant bits each. What is not finite goes into the third piece, which meets the
// other operand's first piece alone, a number of its sign: neither Inf * 0 nor Inf - Inf arises from splitting.
struct BFloat16Pieces {
  float pieces[3];

  __device__ __forceinline__ explicit BFloat16Pieces(float v) {
    const uint32_t bits = __float_as_uint(v), magnitude = bits & 0x7FFFFFFFu;
    if (magnitude >= 0x7F800000u) {
      pieces[0] = __uint_as_float((bits & 0x80000000u) | 0x3F800000u);
      pieces[1] = 0.0f;
      pieces[2] = v;
      return;
    }
    // To nearest, but never past the largest finite bf16 number.
    pieces[0] = __uint_as_float((bits & 0x80000000u) | (min(magnitude + 0x8000u, 0x7F7FFFFFu) & 0xFFFF0000u));
    const float rest = v - pieces[0];
    pieces[1] = __bfloat162float(__float2bfloat16_rn(rest));
    pieces[2] = rest - pieces[1];
  }
};

struct ImageColumn {
  int image, column;  // of the planes, or of x; of images side by side
};

// Which images the pixels of a segment are of: those from first_image on, as many as `images`; one, unless kAbreast.
template <bool kAbreast>
struct RowPlace {
  int first_image, images, first_column;
  const FastDivisor& by_pitch;

  template <typename Storage>
  __device__ __forceinline__ RowPlace(const PackArgs<Storage>& args, int sample, int strip)
      : first_image(sample * args.abreast),
        images(min(args.abreast, args.count - first_image)),
        first_column(strip * args.segment),
        by_pitch(args.by_pitch) {}

  __device__ __forceinline__ ImageColumn operator[](int pixel) const {
    const int column = first_column + pixel;
    if constexpr (!kAbreast) return {0, column};
    const int image = static_cast<int>(by_pitch.quotient(static_cast<uint32_t>(column)));
    return {image, column - image * static_cast<int>(by_pitch.divisor)};
  }
};

// All threads of a block: segment `index` into shared memory.
template <int kPieces, typename Storage>
__device__ __forceinline__ void pack_segment(const PackArgs<Storage>& args, unsigned index, unsigned char* image) {
  constexpr bool kContainers = sizeof(Storage) == 4 && kPieces == 1;
  const PackedOperand& packed = args.packed;
  unsigned rest = index;
  const auto next_digit = [&rest](int radix) {
    if (radix == 1) return 0;
    const unsigned quotient = rest / static_cast<unsigned>(radix),
                   digit = rest - quotient * static_cast<unsigned>(radix);
    rest = quotient;
    return static_cast<int>(digit);
  };
  const int row = next_digit(packed.rows), strip = next_digit(args.strips), block = next_digit(packed.blocks);
  const int group = next_digit(args.groups), sample = static_cast<int>(rest);
  const RowPlace<true> row_place(args, sample, strip);
  const int chunk = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int first_channel = block * WeightGradientConfig::kBlockChannels + chunk * 8;

#ifdef TCONV_WALKS_DEPTH
  // Planes have one tap, of all channels; a chunk is of one class in depth.
  const int class_d = args.planes ? first_channel / args.class_channels : 0;
  const ImageSlice slice(args.images, args.first_image + sample, args.planes ? 0 : first_channel, class_d);
#endif
  const Storage* sources[8];
  int first_column[8];  // of the tensor; beyond it where the channel or the row is not there
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const int channel = first_channel + k;
#ifdef TCONV_WALKS_DEPTH
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
    const int h = row * args.stride_h + class_h * args.class_step_h - args.first_h;
#ifdef TCONV_WALKS_DEPTH
    const bool there = slice.there && channel < packed.channels_per_group && h >= 0 && h < args.size_h;
    const int tensor_channel = group * args.channels_per_class + place;
    sources[k] = args.from + slice.offset + tensor_channel * args.from_c + h * args.from_h;
#else
    const bool there = channel < packed.channels_per_group && h >= 0 && h < args.size_h;
    const int tensor_channel = group * args.channels_per_class + place;
    sources[k] = args.from + row_place.first_image * args.from_n + tensor_channel * args.from_c + h * args.from_h;
#endif
    first_column[k] = there ? class_w * args.class_step_w - args.first_w : INT32_MAX;
  }

  float scale = 1.0f;
  if constexpr (kContainers) scale = args.scale();
  __half2 largest = __floats2half2_rn(0.0f, 0.0f);
  bool subnormal = false;
  for (int pixel = lane; pixel < packed.segment_pixels; pixel += 32) {
    const ImageColumn at = row_place[pixel];
    Storage values[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      values[k] = static_cast<Storage>(0.0f);
      const int w = at.column * args.stride_w + first_column[k];
      if (at.image < row_place.images && first_column[k] != INT32_MAX && w >= 0 && w < args.size_w)
        values[k] = sources[k][at.image * args.from_n + w * args.from_w];
    }
    uint32_t words[kPieces][4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      if constexpr (kContainers) {
        const float a = values[2 * k] * scale, b = values[2 * k + 1] * scale;
        constexpr float kSmallestNormal = 0x1p-14f;
        subnormal |= (values[2 * k] != 0.0f && fabsf(a) < kSmallestNormal) ||
                     (values[2 * k + 1] != 0.0f && fabsf(b) < kSmallestNormal);
        words[0][k] = pack_pair(a, b);
        largest = __hmax2_nan(largest, __habs2(*reinterpret_cast<const __half2*>(&words[0][k])));
      } else if constexpr (kPieces == 3) {
        const BFloat16Pieces a(values[2 * k]), b(values[2 * k + 1]);
#pragma unroll
        for (int i = 0; i < 3; ++i)
          words[i][k] = pack_pair(__float2bfloat16_rn(a.pieces[i]), __float2bfloat16_rn(b.pieces[i]));
      } else {
        words[0][k] = pack_pair(values[2 * k], values[2 * k + 1]);
      }
    }
#ifdef TCONV_WALKS_DEPTH
    if (!args.narrow || chunk < 4)
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
  if constexpr (kContainers) {
    __syncwarp();
    guard_packed(largest, &args.state->guard, [&] { return subnormal; });
  }
}

template <int kPieces, typename Storage>
__global__ void __launch_bounds__(PackConfig::kThreads)
    pack_pixels_kernel(const __grid_constant__ PackArgs<Storage> args) {
  unsigned char* const image = dynamic_smem();
  const int bytes = static_cast<int>(args.packed.segment_bytes);
  pack_segment<kPieces>(args, blockIdx.x, image);
  __syncthreads();
  uint4* const to = reinterpret_cast<uint4*>(args.to + static_cast<int64_t>(blockIdx.x) * bytes);
  for (int i = threadIdx.x; i < bytes / 16; i += PackConfig::kThreads) to[i] = reinterpret_cast<const uint4*>(image)[i];
}

}  // namespace cuda
}  // namespace tconv
