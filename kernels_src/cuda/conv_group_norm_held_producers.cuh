// Producers of the kernel that holds a sample's outputs: input values, converted to 16 bits, as rows of 16 channels.
//
// A lane loads quads of neighbouring pixels in one channel, and a row has one pixel in 8 channels: stmatrix transposes
// pairs of pixels.
#pragma once

#include "conv_group_norm_held_args.cuh"
#include "conv_transpose_hopper_producers.cuh"
#include "mma_sync.cuh"

namespace tconv {
namespace cuda {
namespace held {

// A lane's part of a batch: of each group of 4 quads one, in two channels, kOctet apart. Four lanes share a channel.
constexpr int kGroupQuads = 4, kGroups = kBatchQuads / kGroupQuads, kOctet = 8;
constexpr int kLoads = kGroups * (kChunkChannels / kOctet);
__device__ __forceinline__ int lane_quad(int lane) { return lane % kGroupQuads; }
__device__ __forceinline__ int lane_channel(int lane) { return lane / kGroupQuads; }

// Where a quad of the block's window lies in the input.
struct QuadPlace {
  int row, column;
  bool inside;  // some of it

  template <typename Storage>
  __device__ __forceinline__ QuadPlace(const Args<Storage>& args, int strip, const WindowQuads& quads, int quad) {
    row = quads.row(quad) + args.plan.row_offset;
    column = quads.column(quad) + strip * args.plan.strip_w + args.plan.col_offset;
    inside = quad < quads.count && row >= 0 && row < args.in_h && column > -kVectorPixels && column < args.in_w;
  }
};

// Where a quad's pairs of pixels go in a stage: 16 bits for each, the place of its first pixel's first 8 channels in
// units of 16 bytes. Swizzled: 16-byte half h of pixel p lies at h XOR p / 4 mod 2.
constexpr uint32_t kNoPair = 0xFFFF;
__device__ __forceinline__ uint32_t pair_units(const WindowQuads& quads, int quad, int second) {
  const uint32_t pixel = quads.pixel(quad) + 2 * second;
  return quads.has_pair(quad, second) ? pixel * (kPixelBytes / 16) + (pixel / 4 & 1) : kNoPair;
}

// Where quads come from, if they are whole, and where their pairs go, worked out once: the same in every channel of
// every sample. In each batch a lane's quads follow each other. By all threads of the block.
constexpr int kOutside = INT32_MIN;
template <typename Storage>
__device__ __forceinline__ void fill_offsets(const Args<Storage>& args, const Shared& shared, const Place& place) {
  const WindowQuads quads(args.plan, place.strip, place.tile);
  for (int quad = threadIdx.x; quad * 4 < offsets_bytes(args.plan.window_quads); quad += kThreads) {
    const QuadPlace at(args, place.strip, quads, quad);
    const int offset =
        args.whole_quads && at.inside ? at.row * static_cast<int>(args.x_stride_h) + at.column : kOutside;
    const int index = quad - quad % kBatchQuads + quad % kGroupQuads * kGroups + quad % kBatchQuads / kGroupQuads;
    store_word(shared.offsets + index * 4, offset);
    store_word(shared.units + index * 4, pair_units(quads, quad, 0) | pair_units(quads, quad, 1) << 16);
  }
}
__device__ __forceinline__ uint32_t of_lane(uint32_t table, int first_quad, int lane_quad) {
  return table + (first_quad + lane_quad * kGroups) * 4;
}

// What a lane loads of a chunk of a sample.
template <typename Storage>
struct LaneSource {
  const Storage* channel;  // its first
  int channels_left;       // from that one on

  __device__ __forceinline__ void enter(const Args<Storage>& args, int sample, int chunk, int lane) {
    const int first = chunk * kChunkChannels + lane_channel(lane);
    channels_left = args.plan.in_channels - first;
    channel = args.x + sample * args.x_stride_n + first * args.x_stride_c;
  }

  // Its quads of the batch that begins with quad `first`, zeros where there is no input.
  template <bool kWhole>
  __device__ __forceinline__ void load(const Args<Storage>& args, const Shared& shared, const Place& place,
                                       const WindowQuads& quads, int first, int lane,
                                       Storage (&values)[kLoads][kVectorPixels]) const {
    using Vector = typename std::conditional<sizeof(Storage) == 4, uint4, uint2>::type;
    if constexpr (kWhole) {
      const uint4 words = load_shared_16(of_lane(shared.offsets, first, lane_quad(lane)));
      const uint32_t offsets[kGroups] = {words.x, words.y, words.z, words.w};
#pragma unroll
      for (int k = 0; k < kLoads; ++k) {
        const int octet = k % 2, offset = static_cast<int>(offsets[k / 2]);
        Vector vector = {};
        if (offset != kOutside && octet * kOctet < channels_left)
          vector = hopper::load_with_neighbours(
              reinterpret_cast<const Vector*>(channel + octet * kOctet * args.x_stride_c + offset));
        *reinterpret_cast<Vector*>(values[k]) = vector;
      }
    } else {
#pragma unroll
      for (int group = 0; group < kGroups; ++group) {
        const QuadPlace at(args, place.strip, quads, first + group * kGroupQuads + lane_quad(lane));
        const Storage* const from = channel + (at.row * args.x_stride_h + at.column * args.x_stride_w);
#pragma unroll
        for (int octet = 0; octet < 2; ++octet)
#pragma unroll
          for (int j = 0; j < kVectorPixels; ++j) {
            const bool valid =
                at.inside && octet * kOctet < channels_left && at.column + j >= 0 && at.column + j < args.in_w;
            values[2 * group + octet][j] =
                valid ? from[octet * kOctet * args.x_stride_c + j * args.x_stride_w] : static_cast<Storage>(0.0f);
          }
      }
    }
  }
};

// Neighbouring pixels of a quad, rounded to 16 bits. `largest`: pack_scaled_inputs.
template <typename Storage>
__device__ __forceinline__ uint32_t pack_neighbours(const Storage (&quad)[kVectorPixels], int pair, __half2& largest) {
  if constexpr (sizeof(Storage) == 4) {
    return pack_scaled_inputs(quad[2 * pair], quad[2 * pair + 1], largest);
  } else {
    return pack_pair(quad[2 * pair], quad[2 * pair + 1]);
  }
}

// Four matrices of 8 pixels x 8 channels: a lane has two pixels, those of its place in a channel's four lanes, of one
// channel. Lane l gives the place of matrix l / 8's pixel l % 8.
__device__ __forceinline__ void store_transposed(uint32_t row, const uint32_t (&words)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(words[0]),
               "r"(words[1]), "r"(words[2]), "r"(words[3])
               : "memory");
}

// A matrix has a pair of each of a group's quads. First pairs of quads 0 and 2 lie in the same banks, of 1 and 3, too:
// where 2 and 3 begin with their second ones, none do. In fp32, where values must be converted as well, that costs more
// than it spares.
template <typename Storage>
constexpr bool kSwapsPairs = sizeof(Storage) == 2;

// Converts and stores a lane's part of a batch. Matrices of a group: pairs that lanes begin with, and their other ones,
// in each octet. units: of the quad that this lane gives places of.
template <typename Storage>
__device__ __forceinline__ void store_batch(GuardState* guard, uint32_t stage, uint32_t nowhere, const uint4& units,
                                            int lane, const Storage (&values)[kLoads][kVectorPixels]) {
  const uint32_t of_group[kGroups] = {units.x, units.y, units.z, units.w};
  const uint32_t octet = lane / 16, pixel = lane % 2;
  const auto swaps = [](int quad) { return kSwapsPairs<Storage> && quad >= kGroupQuads / 2; };
  const bool gives_second = (lane / 8 % 2 != 0) != swaps(lane % 8 / 2);
  __half2 largest = __floats2half2_rn(0.0f, 0.0f);
#pragma unroll
  for (int group = 0; group < kGroups; ++group) {
    uint32_t words[4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t first = pack_neighbours(values[2 * group + half], 0, largest);
      const uint32_t second = pack_neighbours(values[2 * group + half], 1, largest);
      words[2 * half] = swaps(lane_quad(lane)) ? second : first,
                words[2 * half + 1] = swaps(lane_quad(lane)) ? first : second;
    }
    const uint32_t unit = __byte_perm(of_group[group], 0, gives_second ? 0x4432 : 0x4410);
    store_transposed(unit != kNoPair ? stage + (unit ^ octet) * 16 + pixel * kPixelBytes : nowhere, words);
  }
  hopper::guard_pixels(values, largest, guard);
}

// One batch in kProducerWarps of each chunk by each producer warp, kSets of them under way at a time.
template <int kSets, bool kWhole, typename Storage>
__device__ __forceinline__ void produce_chunks(const Args<Storage>& args, const Shared& shared, const Place& place,
                                               int warp, int lane) {
  const Plan& plan = args.plan;
  const WindowQuads quads(plan, place.strip, place.tile);
  const uint32_t nowhere = shared.padding_at(warp * 32 + lane, sizeof(Storage));
  LaneSource<Storage> source;
  Storage values[kSets][kLoads][kVectorPixels];
  int first = warp * kBatchQuads, next = first;  // quads of the batch that is stored, and of the one that is loaded
  int sample = place.first_sample, chunk = 0;    // of the one that is loaded
  source.enter(args, sample, chunk, lane);
  const auto load_next = [&](Storage(&to)[kLoads][kVectorPixels]) {
    if (next >= quads.count) {
      next = warp * kBatchQuads;
      if (++chunk == plan.num_chunks) {
        chunk = 0;
        sample += args.samples_at_once;
      }
      if (sample < args.batch) source.enter(args, sample, chunk, lane);
    }
    if (sample >= args.batch) return;
    source.template load<kWhole>(args, shared, place, quads, next, lane, to);
    next += kProducerWarps * kBatchQuads;
  };
#pragma unroll
  for (int set = 0; set < kSets; ++set) load_next(values[set]);
  hopper::RingCursor stage;
  int chunks_left =
      (args.batch - place.first_sample + args.samples_at_once - 1) / args.samples_at_once * plan.num_chunks;
  const auto store_next = [&](const Storage(&from)[kLoads][kVectorPixels]) {
    if (first == warp * kBatchQuads) hopper::mbarrier_wait(shared.chunk_empty + 8 * stage.slot, stage.parity ^ 1);
    const uint4 units = load_shared_16(of_lane(shared.units, first, lane % 8 / 2));
    store_batch(args.guard, shared.ring + stage.slot * plan.stage_bytes, nowhere, units, lane, from);
    first += kProducerWarps * kBatchQuads;
    if (first >= quads.count) {
      first = warp * kBatchQuads;
      __syncwarp();
      if (lane == 0) hopper::mbarrier_arrive(shared.chunk_full + 8 * stage.slot);
      stage.next(plan.num_stages);
      --chunks_left;
    }
  };
  while (chunks_left > 0) {
#pragma unroll
    for (int set = 0; set < kSets; ++set)
      if (set == 0 || chunks_left > 0) {
        store_next(values[set]);
        load_next(values[set]);
      }
  }
}

}  // namespace held
}  // namespace cuda
}  // namespace tconv
