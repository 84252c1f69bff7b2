// wgmma: products of operands in shared memory, as instructions.h has the other instructions. Source: PTX ISA.
#pragma once

#include "runtime.h"

namespace emu {

// fp16 numbers by their bits: the header's own conversion takes dozens of instructions on a host.
inline const std::vector<float> half_values = [] {
  std::vector<float> values(1 << 16);
  for (int bits = 0; bits < 1 << 16; ++bits)
    values[bits] = __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
  return values;
}();

// Address of 16-byte chunk `chunk` of row `row` of an operand. Swizzled rows of 128 bytes: bits 4 to 6 turn with bits 7
// to 9; of 32 bytes: bit 4 with bit 7.
inline uint32_t operand_at(uint64_t descriptor, int row, int chunk) {
  const bool narrow = descriptor >> 62 == 3;
  const uint32_t start = static_cast<uint32_t>(descriptor & 0x3FFF) << 4,
                 group = static_cast<uint32_t>(descriptor >> 32 & 0x3FFF) << 4;
  const uint32_t at = start + row / 8 * group + row % 8 * (narrow ? 32 : 128) + chunk * 16;
  return at ^ (at >> 7 & (narrow ? 1 : 7)) << 4;
}

template <bool kBFloat16>
void operand_row(uint64_t descriptor, int row, float (&values)[16]) {
  for (int chunk = 0; chunk < 2; ++chunk) {
    uint16_t bits[8];
    std::memcpy(bits, at_shared(operand_at(descriptor, row, chunk), 16, "an operand of wgmma"), 16);
    for (int k = 0; k < 8; ++k) {
      if constexpr (kBFloat16) {
        values[chunk * 8 + k] = __uint_as_float(static_cast<uint32_t>(bits[k]) << 16);
      } else {
        values[chunk * 8 + k] = half_values[bits[k]];
      }
    }
  }
}

template <int N, bool kBFloat16>
void wgmma(float (&d)[N / 2], uint64_t a, uint64_t b) {
  float weights[2][16];
  const int row = current % 128 / 32 * 16 + lane() / 4;
  for (int half = 0; half < 2; ++half) operand_row<kBFloat16>(a, row + 8 * half, weights[half]);
  for (int j = 0; j < N / 8; ++j) {
    float pixels[2][16];
    for (int e = 0; e < 2; ++e) operand_row<kBFloat16>(b, 8 * j + 2 * (lane() % 4) + e, pixels[e]);
    float* const sums = d + 4 * j;
    for (int k = 0; k < 16; ++k) {  // four sums side by side, none of which waits for another
      sums[0] += weights[0][k] * pixels[0][k];
      sums[1] += weights[0][k] * pixels[1][k];
      sums[2] += weights[1][k] * pixels[0][k];
      sums[3] += weights[1][k] * pixels[1][k];
    }
  }
  if (!detect_races || lane() != 0) return;  // one lane stands for its warp
  Reads& reads = product_reads[warp()];
  for (int i = 0; i < 16; ++i)
    for (int chunk = 0; chunk < 2; ++chunk)
      reads.open.push_back({operand_at(a, row / 16 * 16 + i, chunk) - kSharedBase, 16});
  for (int i = 0; i < N; ++i)
    for (int chunk = 0; chunk < 2; ++chunk) reads.open.push_back({operand_at(b, i, chunk) - kSharedBase, 16});
  reads.note();
}
// Of operands with pixels as K, 128 bytes of 64 channels each in the 128-byte swizzle, or 64 bytes of 32 in that of 64
// (bits 4 and 5 turn with bits 7 and 8): the address of a pixel's channel in the block that begins `block` leading byte
// offsets from the start.
inline int pixel_bytes(uint64_t descriptor) { return descriptor >> 62 == 2 ? 64 : 128; }
inline uint32_t first_pixel_at(uint64_t descriptor, int block, int channel) {  // before it is turned
  const uint32_t start = static_cast<uint32_t>(descriptor & 0x3FFF) << 4;
  const uint32_t distance = static_cast<uint32_t>(descriptor >> 16 & 0x3FFF) << 4;
  return start + block * distance + channel * 2;
}
inline uint32_t pixel_operand_at(uint64_t descriptor, int pixel, uint32_t first) {
  const uint32_t group = static_cast<uint32_t>(descriptor >> 32 & 0x3FFF) << 4;
  const uint32_t bytes = pixel_bytes(descriptor), turned = bytes == 64 ? 3 : 7;
  const uint32_t at = first + pixel / 8 * group + pixel % 8 * bytes;
  return at ^ (at >> 7 & turned) << 4;
}

template <int N, bool kBFloat16>
void wgmma_pixels(float (&d)[N / 2], uint64_t a, uint64_t b) {
  const auto value = [](uint64_t descriptor, int pixel, uint32_t first) {
    uint16_t bits;
    std::memcpy(&bits, at_shared(pixel_operand_at(descriptor, pixel, first), 2, "an operand of wgmma"), 2);
    return kBFloat16 ? __uint_as_float(static_cast<uint32_t>(bits) << 16) : half_values[bits];
  };
  const int row = current % 128 / 32 * 16 + lane() / 4, channels = pixel_bytes(b) / 2;
  const uint32_t rows[2] = {first_pixel_at(a, 0, row), first_pixel_at(a, 0, row + 8)};
  uint32_t columns[N / 4];
  for (int i = 0; i < N / 4; ++i) {
    const int column = 8 * (i / 2) + 2 * (lane() % 4) + i % 2;
    columns[i] = first_pixel_at(b, column / channels, column % channels);
  }
  for (int pixel = 0; pixel < 16; ++pixel) {
    const float of_a[2] = {value(a, pixel, rows[0]), value(a, pixel, rows[1])};
    for (int i = 0; i < N / 4; ++i) {
      const float of_b = value(b, pixel, columns[i]);
      for (int half = 0; half < 2; ++half) d[4 * (i / 2) + 2 * half + i % 2] += of_a[half] * of_b;
    }
  }
  if (!detect_races || lane() != 0) return;  // one lane stands for its warp
  Reads& reads = product_reads[warp()];
  for (int pixel = 0; pixel < 16; ++pixel)
    for (int block = -1; block < N / channels; ++block) {  // all channels of a pixel are all of its bytes
      const uint64_t descriptor = block < 0 ? a : b;
      const uint32_t bytes = pixel_bytes(descriptor);
      const uint32_t at = pixel_operand_at(descriptor, pixel, first_pixel_at(descriptor, block < 0 ? 0 : block, 0));
      reads.open.push_back({at / bytes * bytes - kSharedBase, bytes});
    }
  reads.note();
}

inline void wgmma_commit() {
  if (lane() != 0) return;
  Reads& reads = product_reads[warp()];
  reads.groups.push_back(std::move(reads.open));
  reads.open.clear();
  reads.noted = 0;
}
inline void wgmma_wait(int pending) {
  converge();  // one instruction of the warp: products of all its lanes are done
  if (lane() != 0) return;
  Reads& reads = product_reads[warp()];
  while (static_cast<int>(reads.groups.size()) > pending) {
    for (const Reads::Range& range : reads.groups.front()) note_read(range.at, range.bytes);
    reads.groups.pop_front();
  }
}

}  // namespace emu
