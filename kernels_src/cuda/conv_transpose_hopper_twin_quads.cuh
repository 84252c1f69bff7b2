// Outputs of twin columns where rows are of an even number: they leave from registers, for a thread's two pixels of a
// fragment are four neighbouring outputs, and a quad of lanes has whole sectors.
#pragma once

#include "conv_transpose_hopper_epilogue.cuh"
#ifdef TCONV_KEEPS_MASK
#include "conv_transpose_hopper_mask.cuh"
#endif

namespace tconv {
namespace cuda {
namespace hopper {

// whole: `at` is aligned to all four; else to pairs, of which the second may not exist.
template <typename Storage>
__device__ __forceinline__ void store_quad(Storage* at, bool whole, bool second, float a, float b, float c, float d) {
  if (!whole) {
    store_pair(at, make_float2(a, b));
    if (second) store_pair(at + 2, make_float2(c, d));
  } else if constexpr (sizeof(Storage) == 4) {
    __stcs(reinterpret_cast<float4*>(at), make_float4(a, b, c, d));
  } else {
    Storage values[4] = {static_cast<Storage>(a), static_cast<Storage>(b), static_cast<Storage>(c),
                         static_cast<Storage>(d)};
    __stcs(reinterpret_cast<uint2*>(at), *reinterpret_cast<uint2*>(values));
  }
}

#ifdef TCONV_KEEPS_MASK
// The same of what the chain is given, with the mask beside it.
template <typename Storage>
__device__ __forceinline__ void store_masked_quad(const HopperArgs<Storage>& args, Storage* at, bool whole, bool second,
                                                  float a, float b, float c, float d) {
  store_quad(at, whole, second, chain_of(args, a), chain_of(args, b), chain_of(args, c), chain_of(args, d));
  if (args.mask == nullptr) return;
  uint8_t* const to = args.mask + (at - args.out);
  const unsigned low = mask_of_pair<Storage>(make_float2(a, b)), high = mask_of_pair<Storage>(make_float2(c, d));
  if (whole) {
    *reinterpret_cast<uint32_t*>(to) = low | high << 16;
    return;
  }
  *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(low);
  if (second) *reinterpret_cast<uint16_t*>(to + 2) = static_cast<uint16_t>(high);
}

#endif
// Where a lane's outputs of its next fragment go. Fragments are 8 pixels of the line apart, at most the pitch.
template <int N, typename Storage>
struct QuadCursor {
  const HopperArgs<Storage>& args;
  const LineExtent<stacks(N)>& extent;
  int image, row, col;
  Storage* to;
#ifdef TCONV_WALKS_DEPTH
  int slices_left;  // of the volume, with this one
#endif

  // first: this lane's channel in image 0; sample: the line's first.
  __device__ __forceinline__ QuadCursor(const HopperArgs<Storage>& a, const LineExtent<stacks(N)>& e, Storage* first,
                                        int sample, int position)
      : args(a), extent(e) {
    extent.pair_at(position, &image, &row, &col);
    to = first + static_cast<int64_t>(row) * args.stride_h * args.out_w + 2 * col;
#ifdef TCONV_WALKS_DEPTH
    to += args.out_offset(sample + image);
    asm volatile("" : "+l"(to));  // before the rest: all at once would not fit the registers
    const int slices = static_cast<int>(args.by_slices.divisor);
    slices_left = slices - (sample + image) % slices;
#else
    to += image * image_step();
#endif
  }

#ifndef TCONV_WALKS_DEPTH
  __device__ __forceinline__ int64_t image_step() const {
    return static_cast<int64_t>(args.plan.num_groups * args.plan.out_channels_per_group) * args.out_h * args.out_w;
  }
#endif

  // The first of the two pixels.
  __device__ __forceinline__ bool exists() const {
    return row < extent.rows && col < extent.cols && (!stacks(N) || image < extent.images);
  }

  __device__ __forceinline__ void next() {
    col += 8, to += 16;
    if (col < args.plan.pitch) return;
    const int row_step = args.stride_h * args.out_w;
    col -= args.plan.pitch, ++row;
    to += row_step - 2 * args.plan.pitch;
    if (!stacks(N) || row < extent.image_rows) return;
    row = 0, ++image;
#ifdef TCONV_WALKS_DEPTH
    to += args.out_stride_d - static_cast<int64_t>(extent.image_rows) * row_step;
    if (--slices_left > 0) return;
    slices_left = static_cast<int>(args.by_slices.divisor);
    to += args.out_stride_n - slices_left * args.out_stride_d;
#else
    to += image_step() - static_cast<int64_t>(extent.image_rows) * row_step;
#endif
  }
};

// A warp's 16 channels, all of them real, x N pixels x two columns. tile_out: the first channel's first output.
#ifdef TCONV_JOINS_QUADS
// join(j): what is left to do of the chain in fragment j, whose results lie result_distance elements behind what they
// are made of, which stays; or in its place.
template <int N, typename Storage, typename Join>
#else
template <int N, typename Storage>
#endif
__device__ __forceinline__ void store_twin_quads(const HopperArgs<Storage>& args, const TileCursor& at,
                                                 const LineExtent<stacks(N)>& extent, const ChannelPair& channels,
                                                 Storage* tile_out, int64_t plane, int first_position, int lane,
#ifdef TCONV_JOINS_QUADS
                                                 int64_t result_distance, Join&& join,
#endif
                                                 float (&even)[N / 2], float (&odd)[N / 2]) {
  // Whole vectors: then the number of pixels is even, and both exist.
  const bool whole = args.out_w % 4 == 0 && reinterpret_cast<uintptr_t>(args.out) % (4 * sizeof(Storage)) == 0;
  constexpr int kFragments = 4;  // finished at once
  int position = first_position + 2 * (lane % 4);
  asm volatile("" : "+r"(position));  // not earlier: places worked out ahead would not fit the registers
  QuadCursor<N, Storage> cursor(args, extent, tile_out + lane / 4 * plane, at.sample, position);
#pragma unroll
  for (int j0 = 0; j0 < N / 8; j0 += kFragments) {
    const int j1 = min(j0 + kFragments, N / 8);
#ifdef TCONV_KEEPS_MASK
    scale_fragments<N>(channels, even, j0, j1);
    scale_fragments<N>(channels, odd, j0, j1);
#else
    finish_fragments<N>(args, channels, at.group, even, j0, j1);
    finish_fragments<N>(args, channels, at.group, odd, j0, j1);
#endif
#pragma unroll
    for (int j = j0; j < j1; ++j) {
#ifdef TCONV_JOINS_QUADS
      const auto store = [&](Storage* to) {
        if (!cursor.exists()) return;
#pragma unroll
        for (int half = 0; half < 2; ++half)
          store_quad(to + half * (kStoreChannels * plane), whole, cursor.col + 1 < extent.cols, even[4 * j + 2 * half],
                     odd[4 * j + 2 * half], even[4 * j + 2 * half + 1], odd[4 * j + 2 * half + 1]);
      };
      if (result_distance != 0) store(cursor.to);
      join(j);
      store(cursor.to + result_distance);
#else
      if (cursor.exists()) {
#pragma unroll
        for (int half = 0; half < 2; ++half)
#ifdef TCONV_KEEPS_MASK
          store_masked_quad(args, cursor.to + half * (kStoreChannels * plane), whole, cursor.col + 1 < extent.cols,
                            even[4 * j + 2 * half], odd[4 * j + 2 * half], even[4 * j + 2 * half + 1],
                            odd[4 * j + 2 * half + 1]);
#else
          store_quad(cursor.to + half * (kStoreChannels * plane), whole, cursor.col + 1 < extent.cols,
                     even[4 * j + 2 * half], odd[4 * j + 2 * half], even[4 * j + 2 * half + 1],
                     odd[4 * j + 2 * half + 1]);
#endif
      }
#endif
      cursor.next();
    }
  }
}

}  // namespace hopper
}  // namespace cuda
}  // namespace tconv
