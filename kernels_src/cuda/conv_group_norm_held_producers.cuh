// Producers of the kernel that holds a sample's outputs: input values, converted to 16 bits, as rows of 16 channels.
#pragma once

#include "conv_group_norm_held_args.cuh"
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
  const Storage* from;     // the quad's first pixel in it; not read where that is outside x
  int column;              // of the input, unless quads are whole
  int channels_left;       // from the first one on
  bool inside;

  __device__ __forceinline__ void enter(const Args<Storage>& args, int sample, int chunk) {
    const int first = chunk * kChunkChannels + lane_half(threadIdx.x) * (kChunkChannels / 2);
    channels_left = args.plan.in_channels - first;
    channel = args.x + sample * args.x_stride_n + first * args.x_stride_c;
  }

  template <bool kWhole>
  __device__ __forceinline__ void find(const Args<Storage>& args, const Shared& shared, const Place& place, int quad) {
    if constexpr (kWhole) {
      const int offset = static_cast<int>(load_word(shared.offsets + quad * 4));
      inside = offset != kOutside;
      from = channel + offset;
    } else {
      const QuadPlace at(args, place, quad);
      inside = at.inside;
      column = at.column;
      from = channel + (at.row * args.x_stride_h + at.column * args.x_stride_w);
    }
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

// One batch in kProducerWarps of each chunk by each producer warp, kSets of them under way at a time.
template <int kSets, bool kWhole, typename Storage>
__device__ __forceinline__ void produce_chunks(const Args<Storage>& args, const Shared& shared, const Place& place, int warp,
                                               int lane) {
  const Plan& plan = args.plan;
  QuadSource<Storage> source;
  Storage values[kSets][8][kVectorPixels];
  int first = warp * kBatchQuads, next = first;  // quads of the batch that is stored, and of the one that is loaded
  int sample = place.first_sample, chunk = 0;    // of the one that is loaded
  source.enter(args, sample, chunk);
  const auto load_next = [&](Storage (&to)[8][kVectorPixels]) {
    if (next >= plan.window_quads) {
      next = warp * kBatchQuads;
      if (++chunk == plan.num_chunks) {
        chunk = 0;
        sample += args.samples_at_once;
      }
      if (sample < args.batch) source.enter(args, sample, chunk);
    }
    if (sample >= args.batch) return;
    source.template find<kWhole>(args, shared, place, next + lane_quad(lane));
    sm90::load_half<kWhole>(args, source, 0, to);
    next += kProducerWarps * kBatchQuads;
  };
#pragma unroll
  for (int set = 0; set < kSets; ++set) load_next(values[set]);
  sm90::RingCursor stage;
  int chunks_left = (args.batch - place.first_sample + args.samples_at_once - 1) / args.samples_at_once * plan.num_chunks;
  const auto store_next = [&](Storage (&from)[8][kVectorPixels]) {
    if (first == warp * kBatchQuads) sm90::mbarrier_wait(shared.chunk_empty + 8 * stage.slot, stage.parity ^ 1);
    const int quad = first + lane_quad(lane);
    store_quad(args.guard, shared.ring + stage.slot * plan.stage_bytes + quad * (kVectorPixels * kPixelBytes),
               quad < plan.window_quads, lane, from);
    first += kProducerWarps * kBatchQuads;
    if (first >= plan.window_quads) {
      first = warp * kBatchQuads;
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
      if (set == 0 || chunks_left > 0) store_next(values[set]);
  }
}

}  // namespace held
}  // namespace cuda
}  // namespace tconv
