// The inner tile of the packed convolution: a few output channels x a few vectors of consecutive pixels, weights
// broadcast, pixels loaded unaligned, sums in registers. Everything fp32.
#pragma once

#include "vector_code.h"

namespace tconv {
namespace cpu {

constexpr int kMaxTileChannels = 6;

// Vectors of pixels per tile, so that sums + pixels + one weight fit in 16 vector registers.
constexpr int tile_vectors(int channels) {
  return channels == 1 ? 6 : channels == 2 ? 4 : channels <= 4 ? 3 : 2;
}
constexpr int kMaxTileVectors = 6;

struct TileArgs {
  const float* x;  // first channel's packed plane, at the tile's first pixel
  int64_t x_plane;
  int64_t in_channels;
  const int64_t* tap_offsets;  // into a plane
  int64_t tap_count;
  const float* weights;  // [in_channels][tap_count][tile channels]
  float* sums;           // [tile channels][sums_stride]
  int64_t sums_stride;
  bool accumulate;  // add to sums instead of overwriting them
};

using TileFunction = void (*)(const TileArgs&, int64_t num_tiles);

// A macro, because GCC lowers vectors to the target of the function they are written in: code shared through a
// template without the target attribute would be split into narrow pieces before it is inlined.
#define TCONV_DEFINE_TILES(NAME, TARGET, VECTOR_BYTES)                                                       \
  struct NAME {                                                                                              \
    typedef float Vector __attribute__((vector_size(VECTOR_BYTES), aligned(4)));                             \
    static constexpr int kLanes = VECTOR_BYTES / 4;                                                          \
    template <int kChannels>                                                                                 \
    TARGET static void run(const TileArgs& args, int64_t num_tiles) {                                        \
      constexpr int kVectors = tile_vectors(kChannels);                                                      \
      for (int64_t tile = 0; tile < num_tiles; ++tile) {                                                     \
        const float* x = args.x + tile * (kVectors * kLanes);                                                \
        float* sums = args.sums + tile * (kVectors * kLanes);                                                \
        const float* w = args.weights;                                                                       \
        Vector acc[kChannels][kVectors];                                                                     \
        for (int c = 0; c < kChannels; ++c)                                                                  \
          for (int v = 0; v < kVectors; ++v)                                                                 \
            acc[c][v] = args.accumulate                                                                      \
                            ? *reinterpret_cast<const Vector*>(sums + c * args.sums_stride + v * kLanes)     \
                            : Vector{};                                                                      \
        for (int64_t ci = 0; ci < args.in_channels; ++ci, x += args.x_plane) {                               \
          for (int64_t t = 0; t < args.tap_count; ++t, w += kChannels) {                                     \
            const float* pixels = x + args.tap_offsets[t];                                                   \
            Vector pixel[kVectors];                                                                          \
            for (int v = 0; v < kVectors; ++v) pixel[v] = *reinterpret_cast<const Vector*>(pixels + v * kLanes); \
            for (int c = 0; c < kChannels; ++c)                                                              \
              for (int v = 0; v < kVectors; ++v) acc[c][v] += w[c] * pixel[v];                               \
          }                                                                                                  \
        }                                                                                                    \
        for (int c = 0; c < kChannels; ++c)                                                                  \
          for (int v = 0; v < kVectors; ++v)                                                                 \
            *reinterpret_cast<Vector*>(sums + c * args.sums_stride + v * kLanes) = acc[c][v];                \
      }                                                                                                      \
    }                                                                                                        \
    static TileFunction pick(int channels) {                                                                 \
      constexpr TileFunction functions[] = {run<1>, run<2>, run<3>, run<4>, run<5>, run<6>};                 \
      return functions[channels - 1];                                                                        \
    }                                                                                                        \
  }

TCONV_DEFINE_TILES(BaselineTiles, , 16);
#if TCONV_HAVE_AVX2
TCONV_DEFINE_TILES(Avx2Tiles, TCONV_TARGET_AVX2, 32);
#endif
#undef TCONV_DEFINE_TILES

inline TileFunction pick_tile([[maybe_unused]] Isa isa, int channels) {
#if TCONV_HAVE_AVX2
  if (isa == Isa::kAvx2) return Avx2Tiles::pick(channels);
#endif
  return BaselineTiles::pick(channels);
}

inline int64_t tile_pixels([[maybe_unused]] Isa isa, int channels) {
  int lanes = BaselineTiles::kLanes;
#if TCONV_HAVE_AVX2
  if (isa == Isa::kAvx2) lanes = Avx2Tiles::kLanes;
#endif
  return int64_t(lanes) * tile_vectors(channels);
}

}  // namespace cpu
}  // namespace tconv
