// The inner tile of the packed convolution: a few output channels x a few vectors of consecutive pixels, weights
// broadcast, pixels loaded unaligned, sums in registers. Everything fp32.
#pragma once

#include <iterator>

#include "vector_code.h"

namespace tconv {
namespace cpu {

constexpr int kMaxTileVectors = 6, kMaxLanes = 16;

// Vectors of pixels per tile, so that sums + pixels + one weight fit in the vector registers.
constexpr int tile_vectors(int channels, int registers) {
  const int vectors = (registers - 1) / (channels + 1);
  return vectors < kMaxTileVectors ? vectors : kMaxTileVectors;
}

struct TileArgs {
  const float* x;  // first channel's packed plane, at the tile's first pixel
  int64_t x_plane;
  int64_t in_channels;
  const int64_t* tap_offsets;  // into a plane, in bytes, which addresses take as they are
  int64_t tap_count;
  const float* weights;  // [in_channels][tap_count][tile channels]
  float* sums;           // [tile channels][sums_stride]
  int64_t sums_stride;
  bool accumulate;  // add to sums instead of overwriting them
};

using TileFunction = void (*)(const TileArgs&, int64_t num_tiles);

// Those of one instruction set.
struct TileSet {
  const TileFunction* functions;  // for one channel, two, ...
  int max_channels, lanes, registers;

  TileFunction function(int channels) const { return functions[channels - 1]; }
  int64_t pixels(int channels) const { return int64_t(lanes) * tile_vectors(channels, registers); }
};

// A macro, because GCC lowers vectors to the target of the function they are written in: code shared through a
// template without the target attribute would be split into narrow pieces before it is inlined.
#define TCONV_DEFINE_TILES(NAME, TARGET, VECTOR_BYTES, REGISTERS, ...)                                                 \
  struct NAME {                                                                                                        \
    typedef float Vector __attribute__((vector_size(VECTOR_BYTES), aligned(4)));                                       \
    static constexpr int kLanes = VECTOR_BYTES / 4;                                                                    \
    template <int kChannels>                                                                                           \
    TARGET static void run(const TileArgs& args, int64_t num_tiles) {                                                  \
      constexpr int kVectors = tile_vectors(kChannels, REGISTERS);                                                     \
      for (int64_t tile = 0; tile < num_tiles; ++tile) {                                                               \
        const float* x = args.x + tile * (kVectors * kLanes);                                                          \
        float* sums = args.sums + tile * (kVectors * kLanes);                                                          \
        const float* w = args.weights;                                                                                 \
        Vector acc[kChannels][kVectors];                                                                               \
        for (int c = 0; c < kChannels; ++c)                                                                            \
          for (int v = 0; v < kVectors; ++v)                                                                           \
            acc[c][v] = args.accumulate ? *reinterpret_cast<const Vector*>(sums + c * args.sums_stride + v * kLanes)   \
                                        : Vector{};                                                                    \
        for (int64_t ci = 0; ci < args.in_channels; ++ci, x += args.x_plane) {                                         \
          for (int64_t t = 0; t < args.tap_count; ++t, w += kChannels) {                                               \
            const char* pixels = reinterpret_cast<const char*>(x) + args.tap_offsets[t];                               \
            Vector pixel[kVectors];                                                                                    \
            for (int v = 0; v < kVectors; ++v) pixel[v] = *reinterpret_cast<const Vector*>(pixels + v * VECTOR_BYTES); \
            for (int c = 0; c < kChannels; ++c)                                                                        \
              for (int v = 0; v < kVectors; ++v) acc[c][v] += w[c] * pixel[v];                                         \
          }                                                                                                            \
        }                                                                                                              \
        for (int c = 0; c < kChannels; ++c)                                                                            \
          for (int v = 0; v < kVectors; ++v)                                                                           \
            *reinterpret_cast<Vector*>(sums + c * args.sums_stride + v * kLanes) = acc[c][v];                          \
      }                                                                                                                \
    }                                                                                                                  \
    static TileSet all() {                                                                                             \
      static constexpr TileFunction functions[] = {__VA_ARGS__};                                                       \
      return {functions, int(std::size(functions)), kLanes, REGISTERS};                                                \
    }                                                                                                                  \
  }

TCONV_DEFINE_TILES(BaselineTiles, , 16, 16, run<1>, run<2>, run<3>, run<4>, run<5>, run<6>);
#if TCONV_HAVE_X86_VECTORS
TCONV_DEFINE_TILES(Avx2Tiles, TCONV_TARGET_AVX2, 32, 16, run<1>, run<2>, run<3>, run<4>, run<5>, run<6>);
TCONV_DEFINE_TILES(Avx512Tiles, TCONV_TARGET_AVX512, 64, 32, run<1>, run<2>, run<3>, run<4>, run<5>, run<6>, run<7>,
                   run<8>);
#endif
#undef TCONV_DEFINE_TILES

inline TileSet tiles_for([[maybe_unused]] Isa isa) {
#if TCONV_HAVE_X86_VECTORS
  if (isa == Isa::kAvx512) return Avx512Tiles::all();
  if (isa == Isa::kAvx2) return Avx2Tiles::all();
#endif
  return BaselineTiles::all();
}

}  // namespace cpu
}  // namespace tconv
