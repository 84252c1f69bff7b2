// Planes of g (weight_gradient_layout.h) where even and odd columns of the output are pixels of two planes next to each
// other, each of whole blocks of channels: a warp reads neighbouring columns, which weight_gradient_pack_rows.cuh reads
// twice, every second one at a time. A block packs a run of rows of a strip of both planes, two rows at a time, whose
// images go to memory by the copy engine. Bound by memory.
#pragma once

#include "bulk_store.cuh"
#include "overlapped_launch.cuh"
#include "weight_gradient_pack_rows.cuh"

namespace tconv {
namespace cuda {

struct PackPairsConfig {
  static constexpr int kThreads = PackConfig::kThreads, kMinBlocks = 4;  // of an SM
  static constexpr int kPlanes = 2;
  static constexpr int kRows = 2;     // of an image
  static constexpr int kRunRows = 8;  // of a block, about
  static constexpr int kImages = 2;   // in turns: one is formed, one goes to memory
  // From one plane's image to the other's, beside the image: so that lanes of both meet other banks.
  static constexpr int kSkewBytes = WeightGradientConfig::kPixelBytes / 2;

  TCONV_HD static int64_t smem_bytes(int64_t segment_bytes) {
    return kImages * kPlanes * (kRows * segment_bytes + kSkewBytes);
  }
};

template <typename Storage>
struct PackPairsArgs {
  PackArgs<Storage> planes;
  int runs, run_rows;
};

template <typename Storage>
bool packs_column_pairs(const PackArgs<Storage>& planes) {
  return planes.classes_w == PackPairsConfig::kPlanes && planes.stride_w == PackPairsConfig::kPlanes &&
         planes.class_step_w == 1 && planes.abreast == 1 &&
         planes.channels_per_class % WeightGradientConfig::kBlockChannels == 0;
}

template <typename Storage>
__global__ void __launch_bounds__(PackPairsConfig::kThreads, PackPairsConfig::kMinBlocks)
    pack_column_pairs_kernel(const __grid_constant__ PackPairsArgs<Storage> args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)  // what it packs for runs nowhere else
  using Config = PackPairsConfig;
  using Pixels = PackedPixels<false, false, Storage>;  // of a column: those of two rows
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
  const int class_blocks = planes.channels_per_class / WeightGradientConfig::kBlockChannels;
  const int strip = next_digit(planes.strips), run = next_digit(args.runs), of_class = next_digit(class_blocks);
  const int classes = next_digit(packed.blocks / (class_blocks * Config::kPlanes));  // of depth and of rows
  const int group = next_digit(planes.groups), sample = static_cast<int>(index);
  const int first_block = classes * Config::kPlanes * class_blocks + of_class;  // of even columns
  const int chunk = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int place = of_class * WeightGradientConfig::kBlockChannels + chunk * 8;  // of the class's channels
#ifdef TCONV_WALKS_DEPTH
  const int classes_h = planes.classes / Config::kPlanes;
  const int class_d = classes / classes_h, class_h = classes - class_d * classes_h;
  const ImageSlice slice(planes.images, planes.first_image + sample, place, class_d);
  const bool in_volume = slice.there;
  const Storage* const source =
      planes.from + slice.offset + static_cast<int64_t>(group * planes.channels_per_class + place) * planes.from_c;
#else
  const int class_h = classes;
  constexpr bool in_volume = true;
  const Storage* const source = planes.from + sample * planes.from_n +
                                static_cast<int64_t>(group * planes.channels_per_class + place) * planes.from_c;
#endif
  const int first_h = class_h * planes.class_step_h - planes.first_h;
  // Columns of the tensor that are the strip's pixels: of the one from `origin` on the first is the even plane's.
  const int origin = strip * planes.segment * Config::kPlanes - planes.first_w;
  const int begin = max(origin, 0), end = min(origin + packed.segment_pixels * Config::kPlanes, planes.size_w);
  const int first_row = run * args.run_rows, end_row = min(first_row + args.run_rows, packed.rows);
  const auto is_row = [&](int row) {
    const int h = row * planes.stride_h + first_h;
    return in_volume && row < end_row && h >= 0 && h < planes.size_h;
  };
  const auto row_at = [&](int row) { return source + (row * planes.stride_h + first_h) * planes.from_h; };

  Pixels pixels;
  const auto load = [&](int row, int first) {
    const int column = first + lane;
    const bool there = column < end;
#pragma unroll
    for (int i = 0; i < Config::kRows; ++i) {
      const bool inside = there && is_row(row + i);
      const Storage* from = row_at(row + i) + column * planes.from_w;
#pragma unroll
      for (int k = 0; k < 8; ++k, from += planes.from_c)
        pixels.values[k][i] = inside ? *from : static_cast<Storage>(0.0f);
    }
  };

  const int bytes = static_cast<int>(packed.segment_bytes);
  const int to_other = Config::kRows * bytes + Config::kSkewBytes, both = Config::kPlanes * to_other;
  load(first_row, begin);
  // Pixels beyond the tensor stay zeros.
  for (int i = threadIdx.x; i < Config::kImages * both / 16; i += Config::kThreads)
    reinterpret_cast<uint4*>(images)[i] = make_uint4(0, 0, 0, 0);
  __syncthreads();
  // By one thread, while the others form the next image.
  const auto copy = [&](int row, int image) {
    const int rows = min(Config::kRows, end_row - row);
#pragma unroll
    for (int of = 0; of < Config::kPlanes; ++of) {
      const int64_t segment =
          (static_cast<int64_t>((sample * planes.groups + group) * packed.blocks + first_block + of * class_blocks) *
               planes.strips +
           strip) *
              packed.rows +
          row;
      hopper::bulk_store(planes.to + segment * bytes, hopper::smem_address(images) + image + of * to_other,
                         rows * bytes);
    }
  };

  ChunkPacker<1, Storage> packer;
  if constexpr (packer.kContainers) packer.scale = planes.scale();
  int image = 0;
#pragma unroll 1
  for (int row = first_row; row < end_row; row += Config::kRows) {
    packer.begin_row();
#pragma unroll 1
    for (int first = begin;;) {
      uint32_t words[Config::kRows][1][4];
#pragma unroll
      for (int i = 0; i < Config::kRows; ++i) packer.pack(pixels, i, words[i]);
      const int nth = first + lane - origin, pixel = nth / Config::kPlanes;  // of the strip's
      const bool own = first + lane < end;
      first += 32;
      const bool more = first < end;
      load(more ? row : row + Config::kRows, more ? first : begin);
      unsigned char* const to = images + image + nth % Config::kPlanes * to_other +
                                pixel * WeightGradientConfig::kPixelBytes + ((chunk ^ pixel) & 7) * 16;
      if (own)
#pragma unroll
        for (int i = 0; i < Config::kRows; ++i)
          *reinterpret_cast<uint4*>(to + i * bytes) =
              make_uint4(words[i][0][0], words[i][0][1], words[i][0][2], words[i][0][3]);
      if (!more) break;
    }
    if constexpr (packer.kContainers) {
      // Where all of both rows is small, values are read again.
      guard_packed(packer.largest, &planes.state->guard, [&] {
        bool subnormal = false;
        if (!__any_sync(0xFFFFFFFFu, packer.any_bits << 1 != 0)) return false;
#pragma unroll 1
        for (int i = 0; i < Config::kRows * 8; ++i) {
          if (!is_row(row + i / 8)) continue;
#pragma unroll 1
          for (int column = begin + lane; column < end; column += 32) {
            const float v = row_at(row + i / 8)[i % 8 * planes.from_c + column * planes.from_w];
            subnormal |= v != 0.0f && fabsf(v * packer.scale) < 0x1p-14f;
          }
        }
        return subnormal;
      });
    }
    if (threadIdx.x == 0) hopper::await_bulk_reads();  // of the image that is next
    hopper::fence_async_proxy();
    __syncthreads();
    if (threadIdx.x == 0) {
      copy(row, image);
      hopper::commit_bulk_stores();
    }
    image = both - image;
  }
  if (threadIdx.x == 0) hopper::await_bulk_stores();
#endif
}

// Of `samples` images.
template <typename Storage>
int64_t launch_pack_column_pairs(const PackArgs<Storage>& planes, int64_t samples, void* stream) {
  using Config = PackPairsConfig;
  PackPairsArgs<Storage> args{planes, 0, 0};
  const PackedOperand& packed = planes.packed;
  const int64_t runs = std::max(1, (packed.rows + Config::kRunRows / 2) / Config::kRunRows);
  args.run_rows = static_cast<int>(round_up(ceil_div(packed.rows, runs), Config::kRows));
  args.runs = static_cast<int>(ceil_div(packed.rows, args.run_rows));
  const auto kernel = pack_column_pairs_kernel<Storage>;
  const int64_t bytes = Config::smem_bytes(packed.segment_bytes);
  TCONV_RETURN_IF_ERROR(allow_dynamic_smem(kernel, bytes));
  const int64_t blocks =
      samples * planes.groups * (packed.blocks / Config::kPlanes) * planes.strips * int64_t{args.runs};
  return launch_overlapped(kernel, dim3(static_cast<unsigned>(blocks)), dim3(Config::kThreads), bytes, stream, args);
}

}  // namespace cuda
}  // namespace tconv
