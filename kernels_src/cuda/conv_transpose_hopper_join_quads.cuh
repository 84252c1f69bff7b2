// The rest of a chain behind its operand of the output's shape, where twin columns leave from registers. A thread's
// outputs of a pass are quads of neighbours; it copies the operand's quads to places of its own in shared memory before
// the products, and reads them back where it stores. So nobody waits for them, no registers hold them, and no pass over
// the outputs follows (join_tensors.cuh).
#pragma once

#include "conv_transpose_hopper_extent.cuh"
#include "conv_transpose_hopper_twin_quads.cuh"
#include "mma_sync.cuh"

namespace tconv {
namespace cuda {
namespace hopper {

template <typename Storage>
constexpr int quad_bytes() {
  return 4 * static_cast<int>(sizeof(Storage));
}

// Past L1 where it can: what shared memory leaves of it holds fewer lines than are on their way.
template <int kBytes>
__device__ __forceinline__ void copy_operand(uint32_t to, const void* from) {
  if constexpr (kBytes == 16)
    cp_async_16(to, from);
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(from), "n"(kBytes) : "memory");
}

// Where this thread's quad of a fragment and half of its channels lies. Neighbouring threads' are side by side, so that
// no bank is met twice.
template <typename Storage>
__device__ __forceinline__ uint32_t operand_place(const Shared& shared, int fragment, int half) {
  return shared.operands + ((2 * fragment + half) * kConsumerThreads + threadIdx.x) * quad_bytes<Storage>();
}

template <typename Storage>
__device__ __forceinline__ bool whole_quads(const HopperArgs<Storage>& args) {
  const uintptr_t out = reinterpret_cast<uintptr_t>(args.out);
  const uintptr_t operand = out + args.operand_distance * sizeof(Storage);
  return args.out_w % 4 == 0 && (out | operand) % quad_bytes<Storage>() == 0;
}

// Asks for the operands of a pass, those of finish_twin_segment's outputs, as one group of this thread's copies.
// block: of output channels.
template <int N, typename Storage>
__device__ __forceinline__ void fetch_quads(const HopperArgs<Storage>& args, const Shared& shared,
                                            const TileCursor& tile, int phase_index, int block, int segment) {
  const Plan& plan = args.plan;
  TileCursor at(plan, tile.chunk);  // anew, as in consume
  at.tile = tile.tile;
  const Phase& phase = plan.phases[phase_index];
  const int lane = threadIdx.x % 32;
  const int first_channel = block * kBlockOC + static_cast<int>(threadIdx.x) / 32 % 4 * 16;
  if (first_channel >= plan.out_channels_per_group) return;
  const int strip_col = at.strip * plan.tile_w;
  const LineExtent<stacks(N)> extent = line_extent<N>(args, phase, at);
#ifdef TCONV_WALKS_DEPTH
  const int64_t plane = args.out_stride_c;
  Storage* const first = args.channel_out(at.group, at.residue, first_channel + lane / 4);
#else
  const int64_t plane = static_cast<int64_t>(args.out_h) * args.out_w;
  const int64_t num_channels = plan.num_groups * plan.out_channels_per_group;
  Storage* const first =
      args.out + (at.sample * num_channels + at.group * plan.out_channels_per_group + first_channel + lane / 4) * plane;
#endif
  Storage* const of_tile =
      first + static_cast<int64_t>(phase.out_first_h) * args.out_w + static_cast<int64_t>(strip_col) * 2;
  const bool whole = whole_quads(args);
  constexpr int kBytes = quad_bytes<Storage>();
  QuadCursor<N, Storage> cursor(args, extent, of_tile + args.operand_distance, at.sample,
                                at.tile * plan.tile_pixels + segment * plan.segment_pixels + 2 * (lane % 4));
#pragma unroll
  for (int j = 0; j < N / 8; ++j, cursor.next()) {
    if (!cursor.exists()) continue;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t to = operand_place<Storage>(shared, j, half);
      const Storage* const from = cursor.to + half * (kStoreChannels * plane);
      if (whole) {
        copy_operand<kBytes>(to, from);
      } else {
        copy_operand<kBytes / 2>(to, from);
        if (cursor.col + 1 < extent.cols) copy_operand<kBytes / 2>(to + kBytes / 2, from + 2);
      }
    }
  }
  cp_async_commit();
}

// Where a kernel's outputs leave so, and the call's operand is read so.
template <int N, bool kTwin, typename Storage>
__device__ __forceinline__ void fetch_operands(const HopperArgs<Storage>& args, const Shared& shared,
                                               const TileCursor& tile, int phase_index, int block, int segment) {
  if constexpr (kTwin && leaves_from_registers(N))
    if (args.joins) fetch_quads<N>(args, shared, tile, phase_index, block, segment);
}

template <typename Storage>
struct alignas(4 * sizeof(Storage)) OperandQuad {
  Storage values[4];

  __device__ __forceinline__ explicit OperandQuad(uint32_t at) {
    if constexpr (sizeof(Storage) == 4) {
      asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(values[0]), "=f"(values[1]), "=f"(values[2]), "=f"(values[3])
                   : "r"(at)
                   : "memory");
    } else {
      uint2 words;
      asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(words.x), "=r"(words.y) : "r"(at) : "memory");
      *reinterpret_cast<uint2*>(values) = words;
    }
  }
};

// The chain from its operand on, of fragment j's quads, which are rounded as if they had been stored before.
template <int N, typename Storage>
__device__ __forceinline__ void join_fragment(const HopperArgs<Storage>& args, const Shared& shared,
                                              const ChannelPair& channels, int group, int j, float (&even)[N / 2],
                                              float (&odd)[N / 2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const OperandQuad<Storage> operand(operand_place<Storage>(shared, j, half));
    const int channel = channels.channel(args.plan, group, half);
    const Storage* rows[kMaxChannelVectors];
#pragma unroll
    for (int k = 0; k < kMaxChannelVectors; ++k) rows[k] = operand.values;  // one of them is a tensor
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float& value = (i % 2 == 0 ? even : odd)[4 * j + 2 * half + i / 2];
      const float stored = static_cast<float>(static_cast<Storage>(value));
      value = Epilogue::join<float, Storage>(stored, args.epilogue, channel, rows, i);
    }
  }
}

}  // namespace hopper
}  // namespace cuda
}  // namespace tconv
