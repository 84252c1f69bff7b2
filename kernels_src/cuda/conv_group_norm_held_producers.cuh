// Producers of the kernel that holds a sample's outputs: input values, converted to 16 bits, as rows of 16 channels.
#pragma once

#include "conv_group_norm_held_args.cuh"
#include "conv_group_norm_held_weights.cuh"
#include "conv_transpose_sm90_producers.cuh"

namespace tconv {
namespace cuda {
namespace held {

// Which part of a batch is this lane's: 8 channels of one quad. A warp's loads are two runs of 16 quads.
__device__ __forceinline__ int lane_half(int lane) { return lane >> 4 & 1; }
__device__ __forceinline__ int lane_quad(int lane) { return lane & 15; }

// Where a quad of the block's window lies in the input.
struct QuadPlace {
  int row, column;
  bool inside;  // some of it

  template <typename Storage>
  __device__ __forceinline__ QuadPlace(const Args<Storage>& args, const Place& place, int quad) {
    const Plan& plan = args.plan;
    const int position = place.tile * kTilePixels + quad * kVectorPixels;
    const int line_row = static_cast<int>(args.by_pitch.quotient(position));
    row = line_row + plan.row_offset;
    column = position - line_row * plan.pitch + place.strip * plan.strip_w + plan.col_offset;
    inside = quad < plan.window_quads && row >= 0 && row < args.in_h && column > -kVectorPixels && column < args.in_w;
  }
};

// Where whole quads come from, worked out once: the same in every channel of every sample. By all threads of the block.
constexpr int kOutside = INT32_MIN;
template <typename Storage>
__device__ __forceinline__ void fill_offsets(const Args<Storage>& args, const Shared& shared, const Place& place) {
  for (int quad = threadIdx.x; quad * 4 < offsets_bytes(args.plan.window_quads); quad += kThreads) {
    const QuadPlace at(args, place, quad);
    const int offset = at.row * static_cast<int>(args.x_stride_h) + at.column;
    store_word(shared.offsets + quad * 4, at.inside ? offset : kOutside);
  }
}

// Where a lane's quads of a chunk come from: 8 channels of a sample.
template <typename Storage>
struct QuadSource {
  const Storage* channel;  // its first
  int channels_left;       // from the first one on

  __device__ __forceinline__ void enter(const Args<Storage>& args, int sample, int chunk) {
    const int first = chunk * kChunkChannels + lane_half(threadIdx.x) * (kChunkChannels / 2);
    channels_left = args.plan.in_channels - first;
    channel = args.x + sample * args.x_stride_n + first * args.x_stride_c;
  }

  // A whole quad, whose offset this is. Without a branch, and addresses that do not wait for each other: a producer is the slower, the longer
  // a batch takes it. What is outside comes from zeros, in every channel from the same.
  __device__ __forceinline__ void load(const Args<Storage>& args, int offset, Storage (&to)[8][kVectorPixels]) const {
    using Vector = std::conditional_t<sizeof(Storage) == 4, uint4, uint2>;
    const bool inside = offset != kOutside && channels_left > 0;
    const char* const from = reinterpret_cast<const char*>(inside ? channel + offset : args.zeros);
    const uint32_t step = inside ? args.channel_bytes : 0;
#pragma unroll
    for (uint32_t k = 0; k < 8; ++k)
      *reinterpret_cast<Vector*>(to[k]) = sm90::load_with_neighbours(reinterpret_cast<const Vector*>(from + uint64_t{k} * step));
  }

  // Any quad, pixel by pixel.
  __device__ __forceinline__ void load_pixels(const Args<Storage>& args, const Place& place, int quad, Storage (&to)[8][kVectorPixels]) const {
    const QuadPlace at(args, place, quad);
    const struct {
      const Storage* from;
      int column, channels_left;
      bool inside;
    } source = {channel + (at.row * args.x_stride_h + at.column * args.x_stride_w), at.column, channels_left, at.inside};
    sm90::load_half<false>(args, source, 0, to);
  }
};

// Converts and stores a lane's pixels, the first of them a multiple of 4 from a swizzle's start. `at`: of that one's row.
template <typename Storage>
__device__ __forceinline__ void store_quad(GuardState* guard, uint32_t at, bool wanted, int lane,
                                           const Storage (&values)[8][kVectorPixels]) {
  // Swizzled: 16-byte half h of pixel p lies at h XOR p / 4 mod 2.
  const uint32_t half_at = at + ((lane_half(lane) ^ lane_quad(lane)) & 1) * 16;
  __half2 largest = __floats2half2_rn(0.0f, 0.0f);
#pragma unroll
  for (int j = 0; j < kVectorPixels; ++j) {
    const uint4 pixel = sm90::convert_pixel(values, j, largest);
    if (wanted)
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(half_at + j * kPixelBytes), "r"(pixel.x), "r"(pixel.y),
                   "r"(pixel.z), "r"(pixel.w)
                   : "memory");
  }
  sm90::guard_pixels(values, largest, guard);
}

constexpr int kPollNanoseconds = 100;

// One batch in kProducerWarps of each chunk by each producer warp, kSets of them under way at a time, each of kQuads quads a lane; and
// where they load weights these, with every second batch and while there is nothing else to do.
template <int kSets, int kQuads, bool kWhole, typename Storage>
__device__ __forceinline__ void produce_chunks(const Args<Storage>& args, const Shared& shared, const Place& place, int warp,
                                               int lane) {
  const Plan& plan = args.plan;
  constexpr int kBatch = kQuads * kBatchQuads, kStep = kProducerWarps * kBatch;
  QuadSource<Storage> source;
  Storage values[kSets][kQuads][8][kVectorPixels];
  const int start = warp * kBatch;             // of each chunk
  int first = start, next = start;             // quads of the batch that is stored, and of the one that is loaded
  int sample = place.first_sample, chunk = 0;  // of the one that is loaded
  int offsets[kQuads];                         // of its quads, read a batch before
  const auto read_offsets = [&] {
    if constexpr (kWhole) {
#pragma unroll
      for (int q = 0; q < kQuads; ++q) offsets[q] = static_cast<int>(load_word(shared.offsets + (next + q * kBatchQuads + lane_quad(lane)) * 4));
    }
  };
  source.enter(args, sample, chunk);
  read_offsets();
  const auto load_next = [&](Storage (&to)[kQuads][8][kVectorPixels]) {
    if (sample >= args.batch) return;
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      if constexpr (kWhole) {
        source.load(args, offsets[q], to[q]);
      } else {
        source.load_pixels(args, place, next + q * kBatchQuads + lane_quad(lane), to[q]);
      }
    }
    next += kStep;
    if (next >= plan.window_quads) {
      next = start;
      if (++chunk == plan.num_chunks) {
        chunk = 0;
        sample += args.samples_at_once;
      }
      if (sample < args.batch) source.enter(args, sample, chunk);
    }
    read_offsets();
  };
#pragma unroll
  for (int set = 0; set < kSets; ++set) load_next(values[set]);
  sm90::RingCursor stage;
  const int samples = (args.batch - place.first_sample + args.samples_at_once - 1) / args.samples_at_once;
  WeightsLoader<kProducerWarps> weights(args, samples, warp, lane);
  int chunks_left = samples * plan.num_chunks;
  const auto store_next = [&](Storage (&from)[kQuads][8][kVectorPixels], bool is_first_set) {
    const uint32_t empty = shared.chunk_empty + 8 * stage.slot;
    if constexpr (kProducersLoadWeights<Storage>) {
      if (is_first_set) weights.load_if_free(args, shared);
      if (first == start)
        while (!__all_sync(0xFFFFFFFFu, sm90::mbarrier_passed(empty, stage.parity ^ 1))) {
          __nanosleep(kPollNanoseconds);  // or it takes the consumers' issue slots
          weights.load_if_free(args, shared);
        }
    } else {
      if (first == start) sm90::mbarrier_wait(empty, stage.parity ^ 1);
    }
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      const int quad = first + q * kBatchQuads + lane_quad(lane);
      store_quad(args.guard, shared.ring + stage.slot * plan.stage_bytes + quad * (kVectorPixels * kPixelBytes),
                 quad < plan.window_quads, lane, from[q]);
    }
    first += kStep;
    if (first >= plan.window_quads) {
      first = start;
      __syncwarp();
      if (lane == 0) sm90::mbarrier_arrive(shared.chunk_full + 8 * stage.slot);
      stage.next(plan.num_stages);
      --chunks_left;
    }
    load_next(from);
  };
  while (chunks_left > 0) {
#pragma unroll
    for (int set = 0; set < kSets; ++set)
      if (set == 0 || chunks_left > 0) store_next(values[set], set == 0);
  }
  if constexpr (kProducersLoadWeights<Storage>)
    while (__any_sync(0xFFFFFFFFu, weights.rows_left > 0)) weights.load_if_free(args, shared);
}

}  // namespace held
}  // namespace cuda
}  // namespace tconv
