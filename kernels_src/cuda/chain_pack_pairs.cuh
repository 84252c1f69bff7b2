// As chain_pack_rows.cuh, for two classes of columns at once: where even and odd columns of the output are pixels of
// two planes next to each other, each of whole blocks of channels, a warp reads neighbouring columns, and its even
// lanes form the one plane's pixels, its odd lanes the other's. One plane at a time takes half of each sector it reads.
#pragma once

#include "bulk_store.cuh"
#include "chain_pack_rows.cuh"

namespace tconv {
namespace cuda {

struct ChainPairsConfig {
  static constexpr int kPlanes = 2;
  static constexpr int kStepPixels = 32 / kPlanes;  // of either plane, that a warp forms at once
  static constexpr int kSteps = WeightGradientConfig::kMaxSegment / kStepPixels;
  // From one plane's image to the other's, beside the image: so that lanes of both meet other banks.
  static constexpr int kSkewBytes = WeightGradientConfig::kPixelBytes / 2;

  // Of an SM, as ChainPackConfig's: 80 registers suffice for chains of three and four steps without operands, but not
  // for the unpacked values of 16 bits.
  static constexpr int min_blocks(int steps, int operands, size_t value_bytes) {
    if (steps > 12) return 1;
    return steps >= 3 && steps <= 4 && operands == 0 && value_bytes > 2 ? 3 : 2;
  }

#ifdef TCONV_READS_MASK
  // Of a mask and gradients fewer bytes are under way than of values, and more blocks have as many.
  template <typename Args>
  static constexpr int blocks_of() {
    constexpr size_t kBytes = sizeof(typename Args::Storage);
    if (Args::Inner::kReadsMask && kBytes > 2) return 3;
    return min_blocks(Args::Inner::kSteps, Args::Inner::kSums, kBytes);
  }

#endif
  TCONV_HD static int64_t smem_bytes(int64_t image_bytes, int beyond) {
    const int64_t ends = int64_t{ChainPackConfig::kRows} * beyond * WeightGradientConfig::kPixelBytes;
    return kPlanes * (ChainPackConfig::kImages * (image_bytes + kSkewBytes) + ends + kSkewBytes);
  }
};

template <typename Storage>
inline bool packs_class_pairs(const PackArgs<Storage>& planes) {
  return planes.classes_w == ChainPairsConfig::kPlanes && planes.stride_w == ChainPairsConfig::kPlanes &&
         planes.class_step_w == 1 && planes.channels_per_class % WeightGradientConfig::kBlockChannels == 0;
}

template <typename Args>
#ifdef TCONV_READS_MASK
__global__ void __launch_bounds__(ChainPackConfig::kThreads, ChainPairsConfig::blocks_of<Args>())
#else
__global__ void __launch_bounds__(ChainPackConfig::kThreads,
                                  ChainPairsConfig::min_blocks(Args::Inner::kSteps, Args::Inner::kSums,
                                                               sizeof(typename Args::Storage)))
#endif
    pack_chain_pairs_kernel(const __grid_constant__ Args args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)  // what it packs for runs nowhere else
  using Config = ChainPackConfig;
  using Pairs = ChainPairsConfig;
  using Storage = typename Args::Storage;
  constexpr int kSums = Args::kSums;
  constexpr bool kContainers = sizeof(Storage) == 4;
  using Channel = ChannelGradient<typename Args::Inner>;
  __shared__ Channel of_channel[WeightGradientConfig::kBlockChannels];
  await_previous_kernels();
  unsigned char* const images = dynamic_smem();
  const uint32_t shared_images = hopper::smem_address(images);
  const PackArgs<Storage>& planes = args.planes;
  const PackedOperand& packed = planes.packed;
  unsigned index = blockIdx.x;
  const auto next_digit = [&index](int radix) {
    const unsigned quotient = index / static_cast<unsigned>(radix), digit = index - quotient * radix;
    index = quotient;
    return static_cast<int>(digit);
  };
  const int class_blocks = planes.channels_per_class / WeightGradientConfig::kBlockChannels;
  const int run = next_digit(args.runs), of_class_block = next_digit(class_blocks);
#ifdef TCONV_WALKS_DEPTH
  const int classes = next_digit(packed.blocks / (class_blocks * Pairs::kPlanes));  // of depth and of rows
  const int group = next_digit(planes.groups), sample = static_cast<int>(index);
  const int classes_h = planes.classes / Pairs::kPlanes;
  const int class_d = classes / classes_h, class_h = classes - class_d * classes_h;
  const int first_block = classes * Pairs::kPlanes * class_blocks + of_class_block;  // of the even lanes' plane
  const ImageSlice slice(planes.images, sample, 0, class_d);
#else
  const int class_h = next_digit(planes.classes / Pairs::kPlanes), group = next_digit(planes.groups);
  const int sample = static_cast<int>(index);
  const int first_block = class_h * Pairs::kPlanes * class_blocks + of_class_block;  // of the even lanes' plane
#endif
  const int first_channel =
      group * planes.channels_per_class + of_class_block * WeightGradientConfig::kBlockChannels;  // of the tensor
  if (threadIdx.x < WeightGradientConfig::kBlockChannels)
    of_channel[threadIdx.x] =
        Channel::of(args.chain, args.first_image + sample, first_channel + static_cast<int>(threadIdx.x));
  __syncthreads();
  const bool normed = args.chain.num_groups > 0;
  const int chunk = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int plane = lane % Pairs::kPlanes, first_pixel = lane / Pairs::kPlanes;
  const int first_h = class_h * planes.class_step_h - planes.first_h, first_w = plane - planes.first_w;
  // Places are 32-bit numbers (packs_chain in chain_gradients.cuh), which the compiler adds in one instruction.
  const uint32_t step_c = static_cast<uint32_t>(planes.from_c), step_h = static_cast<uint32_t>(planes.from_h);
#ifdef TCONV_WALKS_DEPTH
  const int first_row = run * args.run_rows, end_row = min(first_row + args.run_rows, packed.rows);
#else
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
  const int image_bytes = static_cast<int>(packed.segment_bytes);
  const int to_other = image_bytes + Pairs::kSkewBytes, both = Pairs::kPlanes * to_other;
  const int end_bytes = Config::kRows * beyond * WeightGradientConfig::kPixelBytes;
  const int ends = Config::kImages * both;  // of either plane [rows][beyond] pixels, behind the images
  const int own_image = plane * to_other;
  const auto is_column = [&](int strip, int pixel) {
    const int w = (strip * segment + pixel) * Pairs::kPlanes + first_w;
    return w >= 0 && w < planes.size_w;
  };
  const auto is_row = [&](int row) {
    const int h = row * planes.stride_h + first_h;
#ifdef TCONV_WALKS_DEPTH
    return slice.there && row < end_row && h >= 0 && h < planes.size_h;
#else
    return row < end_row && h >= 0 && h < planes.size_h;
#endif
  };
#ifdef TCONV_WALKS_DEPTH
  const uint32_t origin =
      static_cast<uint32_t>(slice.offset + (first_channel + chunk * 8) * planes.from_c) + first_h * step_h + first_w;
#else
  const uint32_t origin = static_cast<uint32_t>(sample * planes.from_n + (first_channel + chunk * 8) * planes.from_c) +
                          first_h * step_h + first_w;
#endif
  const uint32_t row_step = planes.stride_h * step_h;
  const auto place_of = [&](int row, int strip, int pixel) {
    return origin + row * row_step + (strip * segment + pixel) * Pairs::kPlanes;
  };

  // As in pack_chain_rows_kernel, of `pixels` steps.
  const auto subnormal_at = [&](int row, int strip, int pixel, int pixels) {
    constexpr float kSmallestNormal = 0x1p-14f;
    bool found = false;
#pragma unroll 1
    for (int i = 0; i < pixels * 8; ++i) {
      const int of = pixel + Pairs::kStepPixels * (i / 8), k = i % 8;
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

  const int all_bytes = static_cast<int>(Pairs::smem_bytes(image_bytes, beyond));
  for (int i = threadIdx.x; i < all_bytes / 16; i += Config::kThreads)
    reinterpret_cast<uint4*>(images)[i] = make_uint4(0, 0, 0, 0);
  __syncthreads();
  // What the last strip's segments hold behind its own pixels.
  for (int first = 0; first < (end_row - first_row) * beyond; first += Pairs::kStepPixels) {
    const int nth = first + first_pixel, of_run = nth / beyond, pixel = segment + nth - of_run * beyond;
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
    if (row < end_row) made.store(images + ends + plane * (end_bytes + Pairs::kSkewBytes), nth, pixel, chunk);
  }
  __syncthreads();

  // A strip's pixels step by step: the next one's values are under way while one is formed.
#ifdef TCONV_READS_MASK
  Value v[2][8];
  Storage g[2][8];
#else
  Storage v[2][8], g[2][8];
#endif
  const auto load = [&](int row, int strip, int step, int to) {
    const int pixel = first_pixel + Pairs::kStepPixels * step;
    load_chunk(v[to], g[to], place_of(row, strip, pixel), pixel < segment && is_row(row) && is_column(strip, pixel));
  };
  // By one thread, while the others form the next strip.
  const auto copy = [&](int row, int strip, int image) {
#pragma unroll
    for (int of = 0; of < Pairs::kPlanes; ++of) {
      const int block = first_block + of * class_blocks;
      const int64_t nth =
          (static_cast<int64_t>((sample * planes.groups + group) * packed.blocks + block) * strips + strip) *
              packed.rows +
          row;
      hopper::bulk_store(planes.to + nth * image_bytes, shared_images + image + of * to_other, image_bytes);
    }
  };
  load(first_row, 0, 0, 0);
  int image = 0, before = 0;  // where the strip's lie, and those of the strip before
#pragma unroll 1
  for (int row = first_row; row < end_row; ++row) {
#pragma unroll 1
    for (int strip = 0; strip < strips; ++strip) {
      const bool last = strip == strips - 1;
      __half2 largest = __floats2half2_rn(0.0f, 0.0f);
      bool not_zero = false;
#pragma unroll 1
      for (int two = 0; two < Pairs::kSteps; two += 2) {
        if (two * Pairs::kStepPixels >= segment) break;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int step = two + i, pixel = first_pixel + Pairs::kStepPixels * step;
          if (i == 0 || (step + 1) * Pairs::kStepPixels < segment)
            load(row, strip, step + 1, 1 - i);
          else
            load(last ? row + 1 : row, last ? 0 : strip + 1, 0, 0);
          const bool own = pixel < segment;
          const ChunkOfPixel<Storage> made = form_chunk(v[i], g[i], own && is_row(row) && is_column(strip, pixel));
          largest = __hmax2_nan(largest, made.largest);
          not_zero |= made.not_zero();
          if (own) made.store(images + own_image + image, pixel, pixel, chunk);
          if (strip > 0 && pixel < beyond)
            made.store(images + own_image + before, segment + pixel, segment + pixel, chunk);
        }
      }
      if constexpr (kContainers)
        guard_packed(largest, &planes.state->guard,
                     [&] { return not_zero && subnormal_at(row, strip, first_pixel, segment / Pairs::kStepPixels); });
      if (last)
        for (int i = threadIdx.x; i < Pairs::kPlanes * beyond * 8; i += Config::kThreads) {
          const int of = i / (beyond * 8), nth = i - of * beyond * 8;
          reinterpret_cast<uint4*>(images + image + of * to_other)[segment * 8 + nth] = reinterpret_cast<const uint4*>(
              images + ends + of * (end_bytes + Pairs::kSkewBytes))[(row - first_row) * beyond * 8 + nth];
        }
      if (threadIdx.x == 0) hopper::await_bulk_reads();  // what went before, whose images are next
      hopper::fence_async_proxy();
      __syncthreads();
      if (threadIdx.x == 0) {
        if (strip > 0) copy(row, strip - 1, before);
        if (last) copy(row, strip, image);
        hopper::commit_bulk_stores();
      }
      before = image;
      image = image == (Config::kImages - 1) * both ? 0 : image + both;
    }
  }

  if (threadIdx.x == 0) hopper::await_bulk_stores();

  const int64_t of_run = static_cast<int64_t>(args.first_image + sample) * args.runs + run;
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    if (args.sums[i] == nullptr) continue;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      float sum = sums[k][i];  // of the lanes of a plane
      for (int offset = 16; offset >= Pairs::kPlanes; offset /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, offset);
#ifdef TCONV_WALKS_DEPTH
      const int64_t place = of_run * (packed.blocks / class_blocks) + classes * Pairs::kPlanes + plane;
#else
      const int64_t place = of_run * planes.classes + class_h * Pairs::kPlanes + plane;
#endif
      if (lane < Pairs::kPlanes) args.sums[i][place * args.chain.channels + first_channel + chunk * 8 + k] = sum;
    }
  }
#endif
}

}  // namespace cuda
}  // namespace tconv
