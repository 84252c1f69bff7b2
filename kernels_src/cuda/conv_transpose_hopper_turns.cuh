// The Hopper convolution in turns, of layers with one pass a tile: its two warpgroups have the same weights and other
// pixels, and one stores its outputs while the other multiplies. Side by side (conv_transpose_hopper.cuh, whose parts
// these are) they share the stages of the weights' ring, and so begin, end and store together. In turns weights are
// streamed for either, in the order of the turns; pixels are loaded once.
#pragma once

#include "check.h"
#include "conv_transpose_hopper.cuh"
#include "conv_transpose_hopper_turns_pixels.cuh"
#include "conv_transpose_hopper_turns_store.cuh"

namespace tconv {
namespace cuda {
namespace hopper {

// With one accumulator set and no sweeps consumers need fewer registers; data warps have more under way with theirs.
template <int kIndex, typename Storage>
struct TurnsConfig : HopperConfig<kIndex, Storage> {
  using Base = HopperConfig<kIndex, Storage>;
  static constexpr int kConsumerRegisters = sizeof(Storage) == 2 ? 176 : 184;
  static constexpr int kProducerRegisters =
      (Base::kThreads * Base::kLaunchRegisters / 32 - Base::kConsumerWarps * kConsumerRegisters) /
      Base::kProducerWarps / 8 * 8;
};

// Leaves out the stages that the other's turn takes.
__device__ __forceinline__ void skip_turn(const Plan& plan, RingCursor& stage) {
  stage.slot += plan.turn_slots;
  stage.parity ^= plan.turn_laps;
  if (stage.slot >= plan.ring_stages) {
    stage.slot -= plan.ring_stages;
    stage.parity ^= 1;
  }
}

// Warpgroup w has segment w of every tile.
template <int N, typename Storage>
__device__ __forceinline__ void consume_in_turns(const HopperArgs<Storage>& args, const Shared& shared, int warpgroup) {
  constexpr bool kBFloat16 = std::is_same<Storage, __nv_bfloat16>::value;
  // Twice the bytes are waited for: a turn begins with the rows that are there. Else with all of them, and waits no
  // more.
  constexpr bool kByRows = sizeof(Storage) == 4;
  const Plan& plan = args.plan;
  const Phase& phase = plan.phases[0];
  const bool elected = threadIdx.x % 32 == 0;
  const uint32_t weights_low = descriptor_low(shared.weights), ring_low = descriptor_low(shared.ring);
  const int ring_pixels = plan.ring_units * kUnitPixels;
  const auto wrapped = [ring_pixels](int pixel) { return pixel >= ring_pixels ? pixel - ring_pixels : pixel; };
  const int first = warpgroup * plan.segment_pixels + phase.first_pixel;  // of the window
  const int row_extent = plan.segment_pixels + (phase.taps_w - 1) * plan.tap_step_w;
  const int row_step = plan.tap_step_h * plan.pitch;
  UnitCursor units;
  int tile_pixel = 0;  // of the ring: where the window of the tile begins
  RingCursor stage;    // next weight stage
  uint32_t turn_parity = 0;
  if (warpgroup == 1) {
    if (elected) mbarrier_arrive(shared.turn);  // the first turn is warpgroup 0's
    skip_turn(plan, stage);
  }
  for (TileCursor at(plan); !at.done(plan); at.next(plan)) {
    const int origin = (at.tile - at.first_tile) * plan.tile_pixels;  // of the tile, from the chunk's first pixel
    float acc[N / 2];
#pragma unroll
    for (int i = 0; i < N / 2; ++i) acc[i] = 0.0f;
    const bool continues = !at.last_of_chunk();
    // Past this the next tile of the line reads, or nobody.
    const int tile_end = continues ? origin + plan.tile_pixels : INT32_MAX;
    int needed = origin + first;  // a row of taps reads from here on
    int top = wrapped(tile_pixel + first), pixel = top, column = 0, previous = -1;
    const int rows_awaited = kByRows ? 1 : phase.taps_h;
    units.await(shared, units_below(needed + (rows_awaited - 1) * row_step + row_extent), plan.ring_units);
    mbarrier_wait(shared.turn + 8 * warpgroup, turn_parity);
    turn_parity ^= 1;
    with_steps(plan.in_channels_per_group, [&](auto steps) {
#pragma unroll 1
      for (int tap = 0; tap < plan.sweep_tiles; ++tap) {
        if (kByRows && column == 0) units.await(shared, units_below(needed + row_extent), plan.ring_units);
        // Before the last tap: the other warpgroup takes its time to begin.
        if (tap + 1 == plan.sweep_tiles && elected) mbarrier_arrive(shared.turn + 8 * (warpgroup ^ 1));
        mbarrier_wait(shared.weight_full + 8 * stage.slot, stage.parity);
        const uint32_t a = uniform(weights_low + stage.slot * (kTapBytes >> 4));
        const uint32_t b = uniform(ring_low + pixel * (kPixelBytes >> 4));
        multiply_tap<N, decltype(steps)::value, kBFloat16>(acc, a, b);
        wgmma_wait<1>();  // the tap before this one is done with its stage, and before a row the row
        if (column == 0) {
          units.release(shared, min(needed, tile_end) / kUnitPixels, plan.ring_units);
          needed += row_step;
        }
        if (++column == phase.taps_w) {
          column = 0;
          pixel = top = wrapped(top + row_step);
        } else {
          pixel = wrapped(pixel + plan.tap_step_w);
        }
        if (previous >= 0 && elected) mbarrier_arrive(shared.weight_empty + 8 * previous);
        previous = stage.slot;
        stage.next(plan.ring_stages);
      }
    });
    ChannelPair channels;
    channels.load(args, at.group, 0);
    wgmma_wait<0>();
    if (elected) mbarrier_arrive(shared.weight_empty + 8 * previous);
    skip_turn(plan, stage);
    const int end = continues ? tile_end / kUnitPixels : units_below(origin + plan.tile_pixels + plan.reach);
    units.await(shared, end, plan.ring_units);  // also what only the other reads
    units.release(shared, end, plan.ring_units);
    if (continues) {
      tile_pixel = wrapped(tile_pixel + plan.tile_pixels);
    } else {
      units.ready = units.free = 0;
      tile_pixel = units.next_free * kUnitPixels;
    }
    pin_registers(acc);
    int chunk = at.chunk;  // worked out anew, so that its place takes no registers while multiplying
    asm volatile("" : "+r"(chunk));
    TileCursor place(plan, chunk);
    place.tile = at.tile;
    if constexpr (sizeof(Storage) == 2) {
      if (stores_pairs(args)) {
        finish_pairs<N>(args, shared, place, warpgroup, channels, acc);
        continue;
      }
    }
    finish_segment<N, false, Storage>(args, shared, place, 0, 0, warpgroup, channels, acc);
  }
}

// One thread: the weights of every tile, for either turn.
template <typename Storage>
__device__ __forceinline__ void produce_weights_of_turns(const HopperArgs<Storage>& args, const Shared& shared) {
  const Plan& plan = args.plan;
  RingCursor stage;
  for (TileCursor at(plan); !at.done(plan); at.next(plan)) {
    const char* const tiles = reinterpret_cast<const char*>(args.weight_tiles) +
                              static_cast<int64_t>(at.group) * plan.sweep_tiles * kTapBytes;
    for (int i = 0; i < 2 * plan.sweep_tiles; ++i) {
      const uint32_t full = shared.weight_full + 8 * stage.slot;
      mbarrier_wait(shared.weight_empty + 8 * stage.slot, stage.parity ^ 1);
      mbarrier_wait(full, stage.parity ^ 1);  // as in await_free
      mbarrier_arrive_expect_bytes(full, kTapBytes);
      bulk_load(shared.weights + stage.slot * kTapBytes, tiles + i % plan.sweep_tiles * kTapBytes, kTapBytes, full);
      stage.next(plan.ring_stages);
    }
  }
}

template <int kShapeIndex, typename Storage>
__global__ void __launch_bounds__(TurnsConfig<kShapeIndex, Storage>::kThreads, 1)
    conv_transpose_hopper_turns_kernel(const __grid_constant__ HopperArgs<Storage> args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Config = TurnsConfig<kShapeIndex, Storage>;
  extern __shared__ __align__(1024) char storage[];
  const Plan& plan = args.plan;
  const Shared shared = shared_layout(args, smem_address(storage));
  if (shared.ring % 1024 != 0) __trap();  // the swizzle goes by address bits
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < plan.ring_units; ++i) {
      mbarrier_init(shared.unit_full + 8 * i, 32 * kBatchesPerUnit);
      mbarrier_init(shared.unit_empty + 8 * i, Config::kConsumerWarps);
    }
    for (int i = 0; i < plan.weight_stages; ++i) {
      mbarrier_init(shared.weight_full + 8 * i, 1);
      mbarrier_init(shared.weight_empty + 8 * i, 4);  // the warps whose turn it is
    }
    for (int i = 0; i < Config::kConsumers; ++i) mbarrier_init(shared.turn + 8 * i, 4);  // the other's warps
    fence_barrier_init();
  }
  __syncthreads();

  // Told to the compiler as the same for a warp: what follows from it goes to uniform registers.
  const int warpgroup = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0);
  if (warpgroup >= Config::kConsumers) {
    set_registers<Config::kLaunchRegisters, Config::kProducerRegisters>();
    const int producer = warp - Config::kConsumerWarps, data_warps = Config::kProducerWarps - 1;
    if (producer < data_warps) return produce_pixels_of_turns(args, shared, producer, data_warps, lane);
    if (lane > 0) return;
    await_previous_kernels();  // the weight transform; pixels can be loaded meanwhile
    produce_weights_of_turns(args, shared);
  } else {
    set_registers<Config::kLaunchRegisters, Config::kConsumerRegisters>();
    await_previous_kernels();  // the weights' scales
    consume_in_turns<Config::kN, Storage>(args, shared, warpgroup);
  }
#endif
}

template <int kShapeIndex, typename Storage>
int64_t launch_in_turns(const Plan& plan, const HopperArgs<Storage>& args, int num_sms, void* stream) {
  const auto kernel = conv_transpose_hopper_turns_kernel<kShapeIndex, Storage>;
  TCONV_RETURN_IF_ERROR(allow_dynamic_smem(kernel, plan.smem_bytes));
  const int blocks = plan.num_ranges() < num_sms ? plan.num_ranges() : num_sms;
  return launch_overlapped(kernel, dim3(static_cast<unsigned>(blocks)),
                           dim3(TurnsConfig<kShapeIndex, Storage>::kThreads), plan.smem_bytes, stream, args);
}

}  // namespace hopper
}  // namespace cuda
}  // namespace tconv
