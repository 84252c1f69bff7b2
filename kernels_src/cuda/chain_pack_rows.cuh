// Planes of g for both gradients (weight_gradient_layout.h) where g is the gradient of a chain of element-wise
// operations, or of GroupNorm behind one: formed from the convolution's output and the gradient behind them, and packed
// at once, so that g is never in memory; and its sums per channel. A block packs a run of rows, strip by strip: what a
// strip's segment holds of the next strip is stored with that. Bound by memory, and by its instructions.
#pragma once

#include "group_norm_gradient_args.cuh"
#include "group_norm_moments.cuh"
#include "weight_gradient_pack.cuh"

namespace tconv {
namespace cuda {

struct ChainPackConfig {
  static constexpr int kThreads = PackConfig::kThreads;
  // Blocks of an SM, for which the registers of a chain of so many steps and operands suffice. (With few steps the
  // compiler has more of them under way.)
#ifdef TCONV_SEVERAL_STEPS
  static constexpr int min_blocks(int steps, int) { return steps <= 12 ? 2 : 1; }
#else
  static constexpr int min_blocks(int steps, int operands) {
    return steps >= 3 && steps <= 4 && operands == 0 ? 3 : steps <= 12 ? 2 : 1;
  }
#endif
#ifdef TCONV_WALKS_DEPTH
  static constexpr int kRows = 8;  // of a block, at most: rows of volumes are short, and there are many
  static constexpr int kImages = 3, kMostBeyond = 32;
#else
  static constexpr int kRows = 2;         // of a block: more would leave the device empty behind a slice's last
  static constexpr int kImages = 3;       // in turns: one is formed, one lacks its last pixels, one goes to memory
  static constexpr int kMostBeyond = 32;  // pixels of a segment that the next strip's has, too
#endif
};

template <typename InnerType, typename StorageType>
struct ChainPackArgs {
  using Inner = InnerType;
  using Storage = StorageType;
  using Chain = GroupNormGradientArgs<Inner, Storage>;
  static constexpr int kSums = 1 + Inner::kSums;
  static constexpr int kMinBlocks = ChainPackConfig::min_blocks(Inner::kSteps, Inner::kSums);
#ifdef TCONV_READS_MASK
  // A mask lies in the place of what is called value.
  using Value = typename Inner::Value;
  __device__ __forceinline__ Value value_at(uint32_t at) const { return reinterpret_cast<const Value*>(value)[at]; }
#endif
  PackArgs<Storage> planes;  // from: the gradient behind the chain
  const Storage* value;      // the convolution's output, as planes.from
  Chain chain;
  float* sums[kSums];  // [batch][runs][classes][channels], of g and the chain's; null where not wanted
  int runs, first_image;
#ifdef TCONV_WALKS_DEPTH
  int run_rows;
#endif
  int beyond;  // pixels of a segment behind the strip's own; zeros follow
};

// What g of one channel of a sample is formed with.
template <typename Inner>
struct alignas(16) ChannelGradient {
  float scale, slope, mean, shift;
  typename Inner::Channel inner;

  template <typename Args>
  __device__ __forceinline__ static ChannelGradient of(const Args& args, int64_t sample, int64_t channel) {
    const auto inner = args.inner.of_channel(channel);
    if (args.num_groups == 0) return {1.0f, 0.0f, 0.0f, 0.0f, inner};
    const auto group = args.coefficients[sample * args.num_groups + args.by_group_channels.quotient(channel)];
    const float weight = args.weight != nullptr ? static_cast<float>(args.weight[channel]) : 1.0f;
    return {group.rstd * weight, group.slope, group.mean, group.shift, inner};
  }

  template <typename Storage>
  __device__ __forceinline__ float gradient(float value, float grad, bool normed, float* sums) const {
    const auto outer = [&](float inner_value) {
      const float scaled = scale * grad;
      return normed ? scaled + (slope * (inner_value - mean) + shift) : scaled;
    };
    return inner.template gradient<Storage>(value, outer, sums);
  }
};

// Eight channels of a pixel, as they are packed, and what tells whether fp16 containers hold them.
template <typename Storage>
struct ChunkOfPixel {
  uint32_t words[4];
  __half2 largest = __floats2half2_rn(0.0f, 0.0f);
  uint32_t any_bits = 0;

  __device__ __forceinline__ void put(int pair, Storage a, Storage b, float scale) {
    if constexpr (sizeof(Storage) == 4) {
      any_bits |= __float_as_uint(a) | __float_as_uint(b);
      words[pair] = pack_scaled_inputs(a, b, largest, scale);
    } else {
      words[pair] = pack_pair(a, b);
    }
  }

  // Must a value be looked at, should all be small?
  __device__ __forceinline__ bool not_zero() const { return any_bits << 1 != 0; }

  __device__ __forceinline__ void store(unsigned char* image, int place, int pixel, int chunk) const {
    *reinterpret_cast<uint4*>(image + place * WeightGradientConfig::kPixelBytes + ((chunk ^ pixel) & 7) * 16) =
        make_uint4(words[0], words[1], words[2], words[3]);
  }
};

template <typename Args>
__global__ void __launch_bounds__(ChainPackConfig::kThreads, Args::kMinBlocks)
    pack_chain_rows_kernel(const __grid_constant__ Args args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)  // what it packs for runs nowhere else
  using Config = ChainPackConfig;
  using Storage = typename Args::Storage;
  constexpr int kSums = Args::kSums;
  constexpr bool kContainers = sizeof(Storage) == 4;
  using Channel = ChannelGradient<typename Args::Inner>;
  __shared__ Channel of_channel[WeightGradientConfig::kBlockChannels];
  await_previous_kernels();
  unsigned char* const images = dynamic_smem();
  const PackArgs<Storage>& planes = args.planes;
  const PackedOperand& packed = planes.packed;
  unsigned index = blockIdx.x;
  const auto next_digit = [&index](int radix) {
    const unsigned quotient = index / static_cast<unsigned>(radix), digit = index - quotient * radix;
    index = quotient;
    return static_cast<int>(digit);
  };
  const int run = next_digit(args.runs), block = next_digit(packed.blocks);
  const int group = next_digit(planes.groups), sample = static_cast<int>(index);
  const int first_channel = block * WeightGradientConfig::kBlockChannels;
#ifdef TCONV_WALKS_DEPTH
  const auto class_of = [&](int channel) { return channel / planes.channels_per_class; };  // of those in depth, too
#else
  const auto class_of = [&](int channel) { return planes.classes > 1 ? channel / planes.channels_per_class : 0; };
#endif
  const auto tensor_channel = [&](int channel, int of_class) {
    return group * planes.channels_per_class + channel - of_class * planes.channels_per_class;
  };
  if (threadIdx.x < WeightGradientConfig::kBlockChannels) {
    const int channel = min(first_channel + static_cast<int>(threadIdx.x), packed.channels_per_group - 1);
    of_channel[threadIdx.x] =
        Channel::of(args.chain, args.first_image + sample, tensor_channel(channel, class_of(channel)));
  }
  __syncthreads();
  const bool normed = args.chain.num_groups > 0;
  const int chunk = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int channel = first_channel + chunk * 8, of_class = class_of(channel);
  const bool real = channel < packed.channels_per_group;  // all eight, or none
#ifdef TCONV_WALKS_DEPTH
  const int class_d = of_class / planes.classes, of_both = of_class - class_d * planes.classes;
  const int class_h = of_both / planes.classes_w, class_w = of_both - class_h * planes.classes_w;
  const ImageSlice slice(planes.images, sample, 0, class_d);
#else
  const int class_h = of_class / planes.classes_w, class_w = of_class - class_h * planes.classes_w;
#endif
  const int first_h = class_h * planes.class_step_h - planes.first_h;
  const int first_w = class_w * planes.class_step_w - planes.first_w;
  // Places are 32-bit numbers (packs_chain in chain_gradients.cuh), which the compiler adds in one instruction.
  const uint32_t step_c = static_cast<uint32_t>(planes.from_c), step_h = static_cast<uint32_t>(planes.from_h);
#ifdef TCONV_WALKS_DEPTH
  const uint32_t plane = static_cast<uint32_t>(slice.offset + tensor_channel(channel, of_class) * planes.from_c);
  const int first_row = run * args.run_rows, end_row = min(first_row + args.run_rows, packed.rows);
#else
  const uint32_t plane =
      static_cast<uint32_t>(sample * planes.from_n + tensor_channel(channel, of_class) * planes.from_c);
  const int first_row = run * Config::kRows, end_row = min(first_row + Config::kRows, packed.rows);
#endif
  const float scale = kContainers ? planes.scale() : 1.0f;

  float sums[8][kSums] = {};
  // g of the chunk's channel k.
#ifdef TCONV_READS_MASK
  using Value = typename Args::Value;
  const auto form = [&](int k, Value value, Storage grad, bool there) {
#else
  const auto form = [&](int k, Storage value, Storage grad, bool there) {
#endif
    float own[kSums] = {};
    own[0] = of_channel[chunk * 8 + k].template gradient<Storage>(static_cast<float>(value), static_cast<float>(grad),
                                                                  normed, own + 1);
#pragma unroll
    for (int i = 0; i < kSums; ++i)
      if (there) sums[k][i] += own[i];
    return to_storage<Storage>(there ? own[0] : 0.0f);
  };
#ifdef TCONV_READS_MASK
  const auto form_chunk = [&](const Value(&v)[8], const Storage(&g)[8], bool there) {
#else
  const auto form_chunk = [&](const Storage(&v)[8], const Storage(&g)[8], bool there) {
#endif
    ChunkOfPixel<Storage> made;
#pragma unroll
    for (int k = 0; k < 8; k += 2) {
      const Storage a = form(k, v[k], g[k], there), b = form(k + 1, v[k + 1], g[k + 1], there);
      made.put(k / 2, a, b, scale);
      asm volatile("" : "+r"(made.words[k / 2]));  // one after another: all at once would not fit the registers
    }
    return made;
  };
#ifdef TCONV_READS_MASK
  const auto load_chunk = [&](Value(&v)[8], Storage(&g)[8], uint32_t at, bool there) {
#pragma unroll
    for (int k = 0; k < 8; ++k) v[k] = static_cast<Value>(0.0f), g[k] = static_cast<Storage>(0.0f);
#else
  const auto load_chunk = [&](Storage(&v)[8], Storage(&g)[8], uint32_t at, bool there) {
#pragma unroll
    for (int k = 0; k < 8; ++k) v[k] = g[k] = static_cast<Storage>(0.0f);
#endif
    if (!there) return;
#pragma unroll
#ifdef TCONV_READS_MASK
    for (int k = 0; k < 8; ++k, at += step_c) v[k] = args.value_at(at), g[k] = planes.from[at];
#else
    for (int k = 0; k < 8; ++k, at += step_c) v[k] = args.value[at], g[k] = planes.from[at];
#endif
  };

  const int strips = planes.strips, segment = planes.segment, beyond = args.beyond;
  const int image_bytes = static_cast<int>(packed.segment_bytes), chunks = image_bytes / 16;
  const int ends = Config::kImages * image_bytes;  // [rows][beyond] pixels, behind the images
  const auto is_column = [&](int strip, int pixel) {
    const int w = (strip * segment + pixel) * planes.stride_w + first_w;
    return real && w >= 0 && w < planes.size_w;
  };
  const auto is_row = [&](int row) {
    const int h = row * planes.stride_h + first_h;
#ifdef TCONV_WALKS_DEPTH
    return slice.there && row < end_row && h >= 0 && h < planes.size_h;
#else
    return row < end_row && h >= 0 && h < planes.size_h;
#endif
  };
  const uint32_t origin = plane + first_h * step_h + first_w, row_step = planes.stride_h * step_h;
  const auto place_of = [&](int row, int strip, int pixel) {
    return origin + row * row_step + (strip * segment + pixel) * planes.stride_w;
  };

  // Is one of these pixels' values subnormal as it is packed? Formed again, since hardly ever asked: where all that a
  // warp has packed is small, and not zero. Behind steps that clamp, many a warp has but one value.
  const auto subnormal_at = [&](int row, int strip, int pixel, int pixels) {
    constexpr float kSmallestNormal = 0x1p-14f;
    bool found = false;
#pragma unroll 1
    for (int i = 0; i < pixels * 8; ++i) {
      const int of = pixel + 32 * (i / 8), k = i % 8;
      if (!is_row(row) || !is_column(strip, of)) continue;
      const uint32_t at = place_of(row, strip, of) + k * step_c;
      float unused[kSums] = {};
      const float made = of_channel[chunk * 8 + k].template gradient<Storage>(
#ifdef TCONV_READS_MASK
          static_cast<float>(args.value_at(at)), static_cast<float>(planes.from[at]), normed, unused);
#else
          static_cast<float>(args.value[at]), static_cast<float>(planes.from[at]), normed, unused);
#endif
      found |= made != 0.0f && fabsf(made * scale) < kSmallestNormal;
    }
    return found;
  };

  for (int i = threadIdx.x; i < Config::kImages * chunks; i += Config::kThreads)
    reinterpret_cast<uint4*>(images)[i] = make_uint4(0, 0, 0, 0);
  // What the last strip's segments hold behind its own pixels.
  for (int first = 0; first < (end_row - first_row) * beyond; first += 32) {
    const int nth = first + lane, of_run = nth / beyond, pixel = segment + nth - of_run * beyond;
    const int row = first_row + of_run;
    const bool there = is_row(row) && is_column(strips - 1, pixel);
#ifdef TCONV_READS_MASK
    Value v[8];
    Storage g[8];
#else
    Storage v[8], g[8];
#endif
    load_chunk(v, g, place_of(row, strips - 1, pixel), there);
    const ChunkOfPixel<Storage> made = form_chunk(v, g, there);
    if constexpr (kContainers)
      guard_packed(made.largest, &planes.state->guard,
                   [&] { return made.not_zero() && subnormal_at(row, strips - 1, pixel, 1); });
    if (row < end_row) made.store(images + ends, nth, pixel, chunk);
  }
  __syncthreads();

  // A strip's pixels by halves: the next one's values are under way while one is formed.
#ifdef TCONV_READS_MASK
  Value v[2][8];
  Storage g[2][8];
#else
  Storage v[2][8], g[2][8];
#endif
  const auto load = [&](int row, int strip, int half) {
    const int pixel = lane + 32 * half;
    load_chunk(v[half], g[half], place_of(row, strip, pixel),
               pixel < segment && is_row(row) && is_column(strip, pixel));
  };
  const auto copy = [&](int row, int strip, const unsigned char* image) {
    const int64_t index =
        (static_cast<int64_t>((sample * planes.groups + group) * packed.blocks + block) * strips + strip) *
            packed.rows +
        row;
    uint4* const to = reinterpret_cast<uint4*>(planes.to + index * image_bytes);
    for (int i = threadIdx.x; i < chunks; i += Config::kThreads) to[i] = reinterpret_cast<const uint4*>(image)[i];
  };
  load(first_row, 0, 0);
  int image = 0, before = 0;  // where the strip's lies, and that of the strip before
#pragma unroll 1
  for (int row = first_row; row < end_row; ++row) {
#pragma unroll 1
    for (int strip = 0; strip < strips; ++strip) {
      const bool last = strip == strips - 1;
      __half2 largest = __floats2half2_rn(0.0f, 0.0f);
      bool not_zero = false;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int pixel = lane + 32 * half;
        if (half == 0)
          load(row, strip, 1);
        else
          load(last ? row + 1 : row, last ? 0 : strip + 1, 0);
        if (32 * half >= segment) continue;
        const bool own = pixel < segment;
        const ChunkOfPixel<Storage> made = form_chunk(v[half], g[half], own && is_row(row) && is_column(strip, pixel));
        largest = __hmax2_nan(largest, made.largest);
        not_zero |= made.not_zero();
        if (own) made.store(images + image, pixel, pixel, chunk);
        if (strip > 0 && pixel < beyond) made.store(images + before, segment + pixel, segment + pixel, chunk);
      }
      if constexpr (kContainers)
        guard_packed(largest, &planes.state->guard, [&] { return not_zero && subnormal_at(row, strip, lane, 2); });
      if (last)
        for (int i = threadIdx.x; i < beyond * 8; i += Config::kThreads)
          reinterpret_cast<uint4*>(images + image)[segment * 8 + i] =
              reinterpret_cast<const uint4*>(images + ends)[(row - first_row) * beyond * 8 + i];
      __syncthreads();
      if (strip > 0) copy(row, strip - 1, images + before);
      if (last) copy(row, strip, images + image);
      before = image;
      image = image == (Config::kImages - 1) * image_bytes ? 0 : image + image_bytes;
    }
  }

#ifdef TCONV_WALKS_DEPTH
  const int64_t of_run = static_cast<int64_t>(args.first_image + sample) * args.runs + run;
  const int64_t place = of_run * class_of(packed.channels_per_group) + of_class;
#else
  const int64_t place = (static_cast<int64_t>(args.first_image + sample) * args.runs + run) * planes.classes + of_class;
#endif
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    if (args.sums[i] == nullptr) continue;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float sum = norm::warp_sum(sums[k][i]);
      if (lane == 0 && real) args.sums[i][place * args.chain.channels + tensor_channel(channel, of_class) + k] = sum;
    }
  }
#endif
}

}  // namespace cuda
}  // namespace tconv
