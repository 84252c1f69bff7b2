// Transposed convolution on Hopper's tensor cores (wgmma), from NCHW to NCHW with no layout sweep.
//
// D[64 output channels x N pixels] += W_tap[64 x 64] * X_tap[64 x N], one product per tap. Pixels lie in shared memory
// as rows of 64 channels (128 bytes, 128-byte swizzle), so that a tap is the same window read from a start address
// shifted by whole pixels: each input value is loaded and converted once per tile, not once per tap.
// conv_transpose_hopper_plan.h defines tile, sweep, segment, window and ring; docs/kernels.md follows a value through.
//
// The first warpgroups multiply and run the epilogue, where the plan says so in turns: one stores while the other
// multiplies. The warps after them load input values (kVectorPixels pixels x 8 channels a thread), convert, and store
// them as pixel rows; the last warp streams weight tiles by bulk copy. Units of the ring and stages of the weights have
// full and empty barriers.
#pragma once

#include "conv_transpose_hopper_epilogue.cuh"
#ifdef TCONV_JOINS_COLUMNS
#include "conv_transpose_hopper_joined.cuh"
#endif
#ifdef TCONV_READS_PACKED
#include "conv_transpose_hopper_packed.cuh"
#endif
#include "conv_transpose_hopper_producers.cuh"
#ifdef TCONV_SHORT_PASSES
#include "conv_transpose_hopper_short_pass.cuh"
#endif
#include "conv_transpose_hopper_twin.cuh"
#include "overlapped_launch.cuh"
#include "wgmma.cuh"

namespace tconv {
namespace cuda {
namespace hopper {

// One tap: kSteps products of 16 channels, committed as one group.
template <int N, int kSteps, bool kBFloat16>
__device__ __forceinline__ void multiply_tap(float (&acc)[N / 2], uint32_t a, uint32_t b) {
  wgmma_fence();
#pragma unroll
  for (uint32_t k = 0; k < kSteps; ++k)
    Wgmma<N>::template multiply<kBFloat16>(acc, matrix_descriptor(a + k * kDescriptorStepK16),
                                           matrix_descriptor(b + k * kDescriptorStepK16));
  wgmma_commit();
}

// Calls f(number of products) for a block with so many input channels left: straight-line code for each number, because
// a loop would wait for every product.
template <typename Function>
__device__ __forceinline__ void with_steps(int in_channels, Function&& f) {
  if (in_channels > 32) {
    f(std::integral_constant<int, 4>());
  } else if (in_channels > 16) {
    f(std::integral_constant<int, 2>());
  } else {
    f(std::integral_constant<int, 1>());
  }
}

// A warp's place in the units of the line that its block is on. Rows of taps come by often: no divisions, few barriers.
struct UnitCursor {
  int ready = 0, free = 0;  // units of the line awaited, and given back
  RingCursor next_ready;
  int next_free = 0;  // slot

  // Waits for the line's units below `end`; reads by wgmma may follow.
  __device__ __forceinline__ void await(const Shared& shared, int end, int ring_units) {
    if (ready >= end) return;
#pragma unroll 1
    for (; ready < end; ++ready) {
      mbarrier_wait(shared.unit_full + 8 * next_ready.slot, next_ready.parity);
      next_ready.next(ring_units);
    }
    fence_async_proxy();  // the units were written by ordinary stores
  }

  // Gives back the units below `end`, all awaited, which no product of this warp will read any more.
  __device__ __forceinline__ void release(const Shared& shared, int end, int ring_units) {
#pragma unroll 1
    for (; free < end; ++free) {
      if (threadIdx.x % 32 == 0) mbarrier_arrive(shared.unit_empty + 8 * next_free);
      if (++next_free == ring_units) next_free = 0;
    }
  }
};

// kTwin: a pass is two phases, even and odd columns of the same rows.
template <int N, bool kPooled, bool kTwin, typename Storage>
__device__ __forceinline__ void consume(const HopperArgs<Storage>& args, const Shared& shared, int warpgroup) {
  constexpr bool kBFloat16 = std::is_same<Storage, __nv_bfloat16>::value;
  const Plan& plan = args.plan;
  const bool elected = threadIdx.x % 32 == 0;
  const uint32_t weights_low = descriptor_low(shared.weights);
  const uint32_t ring_low = descriptor_low(shared.ring);
  // Resident: the weights of this warpgroup's block are every blocks_per_sweep-th stage. Otherwise its block has a
  // ring.
  const int block = warpgroup % plan.blocks_per_sweep;
  const int first_stage = plan.resident_weights ? block : block * plan.ring_stages;
  const int last_stage = first_stage + plan.ring_stages - 1;
  const int segment = warpgroup / plan.blocks_per_sweep;
  const int ring_pixels = plan.ring_units * kUnitPixels;
  const auto wrapped = [ring_pixels](int pixel) { return pixel >= ring_pixels ? pixel - ring_pixels : pixel; };
  UnitCursor units;
  int tile_pixel = 0;                // of the ring: where the window of the tile begins
  RingCursor stage{first_stage, 0};  // next weight stage
  const bool resident = plan.resident_weights != 0, alternate = plan.alternate != 0;
  uint32_t turn_parity = 0;
  if (alternate && warpgroup == 1 && elected) mbarrier_arrive(shared.turn);  // the first turn is warpgroup 0's
  for (int i = 0; resident && i < plan.weight_stages; ++i) mbarrier_wait(shared.weight_full + 8 * i, 0);

  for (TileCursor at(plan); !at.done(plan); at.next(plan)) {
    const int origin = (at.tile - at.first_tile) * plan.tile_pixels;  // of the tile, from the chunk's first pixel
#ifdef TCONV_WALKS_DEPTH
    // Where there are residues the part is worked out anew: a residue of `at` would take a register while multiplying.
    const int weights_part = resident && plan.residue_bits > 0 ? TileCursor(plan, at.chunk).part(plan) : at.group;
    if (resident) stage.slot = first_stage + weights_part * plan.num_sweeps * plan.sweep_tiles * plan.blocks_per_sweep;
#else
    if (resident) stage.slot = first_stage + at.group * plan.num_sweeps * plan.sweep_tiles * plan.blocks_per_sweep;
#endif
    int sweep = 0, phase_index = 0;
    do {
#ifdef TCONV_JOINS_QUADS
      fetch_operands<N, kTwin>(args, shared, at, phase_index, sweep * plan.blocks_per_sweep + block, segment);
#endif
      constexpr int kParts = kTwin ? 2 : 1;
      float acc[kParts][N / 2];
#pragma unroll
      for (int part = 0; part < kParts; ++part)
#pragma unroll
        for (int i = 0; i < N / 2; ++i) acc[part][i] = 0.0f;
#ifdef TCONV_JOINS_COLUMNS
      if constexpr (may_be_apart<N, kTwin, Storage>()) pin_registers(acc[0]);  // or each way from here clears them
#endif
      const int channel0 = (sweep * plan.blocks_per_sweep + block) * kBlockOC;
      ChannelPair channels;
      bool tapped = false;
#ifdef TCONV_SHORT_PASSES
      const bool is_short = has_short_passes(N) && multiplies_short_passes(args);
      if (is_short) {
        tapped = true;
        const int window_end = units_below(origin + plan.tile_pixels + plan.reach);
        units.await(shared, window_end, plan.ring_units);
        const int pixel = wrapped(tile_pixel + segment * plan.segment_pixels);
        constexpr bool kLoadsAhead = N <= 64;  // more accumulators leave no registers for it
        if constexpr (kLoadsAhead) channels.load(args, at.group, channel0);
        const auto multiply = [](auto steps, float (&to)[N / 2], uint32_t a, uint32_t b) {
          multiply_tap<N, decltype(steps)::value, kBFloat16>(to, a, b);
        };
        const auto of_channels = [](int left, auto&& body) { with_steps(left, body); };
        WeightRing weights{stage, first_stage, last_stage, 0};
        if (resident) {
          const int before = sweep * plan.sweep_tiles + plan.phases[phase_index].weight_base;
          const uint32_t a = weights_low + (stage.slot + before * plan.blocks_per_sweep) * (kTapBytes >> 4);
          multiply_pass<false>(plan, shared, ring_low, 0, a, pixel, phase_index, weights, acc, multiply, of_channels);
        } else {
          if (alternate && (plan.phases[phase_index].taps_h > 0 || plan.phases[phase_index + kParts - 1].taps_h > 0)) {
            mbarrier_wait(shared.turn + 8 * warpgroup, turn_parity);
            turn_parity ^= 1;
            weights.hand_over = shared.turn + 8 * (warpgroup ^ 1);
          }
          multiply_pass<true>(plan, shared, ring_low, weights_low, 0, pixel, phase_index, weights, acc, multiply,
                              of_channels);
          stage = weights.next;
        }
        if constexpr (!kLoadsAhead) channels.load(args, at.group, channel0);
        if (sweep == plan.num_sweeps - 1 && phase_index + kParts == plan.num_phases) {  // the window's last pass
          const bool continues = !at.last_of_chunk();
          units.release(shared, continues ? (origin + plan.tile_pixels) / kUnitPixels : window_end, plan.ring_units);
          if (continues) {
            tile_pixel = wrapped(tile_pixel + plan.tile_pixels);
          } else {
            units.ready = units.free = 0;
            tile_pixel = units.next_free * kUnitPixels;
          }
        }
      }
#pragma unroll
      for (int part = 0; part < kParts && !is_short; ++part) {
#else
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#endif
        const Phase& phase = plan.phases[phase_index + part];
        int ic_block = 0;
        if (phase.taps_h == 0) {
          ic_block = plan.num_ic_blocks;
        } else if (alternate && !tapped) {
          mbarrier_wait(shared.turn + 8 * warpgroup, turn_parity);
          turn_parity ^= 1;
        }
        // The pass's last products end its turn.
        const bool ends = part == kParts - 1 || plan.phases[phase_index + kParts - 1].taps_h == 0;
        tapped = tapped || phase.taps_h != 0;
        while (ic_block < plan.num_ic_blocks) {
          const bool all_in_ring = plan.num_ic_blocks == plan.ring_ic_blocks;
          // Of what the ring holds: else every ic block is loaded anew for every phase of every sweep.
          const bool last_pass = sweep == plan.num_sweeps - 1 && phase_index + part == plan.last_tapped_phase;
          const bool last_use = !all_in_ring || (last_pass && ic_block == plan.num_ic_blocks - 1);
          const bool continues = all_in_ring && !at.last_of_chunk();
          const uint32_t part_low =
              ring_low + (all_in_ring ? ic_block * plan.ring_block_pixels * (kPixelBytes >> 4) : 0);
          // Past this the next tile of the line reads, or nobody.
          const int tile_end = continues ? origin + plan.tile_pixels : INT32_MAX;
          const int in_channels = plan.in_channels_per_group - ic_block * kBlockIC;  // those beyond are zeros
          const int row_step = plan.tap_step_h * plan.pitch;
#ifdef TCONV_SKIPS_TAPS
          const int lacks_row = args.packed.taps.lacks_row(ic_block);
          const int lacks_column = args.packed.taps.lacks_column(ic_block);
          const int taps_h = phase.taps_h - lacks_row, taps_w = phase.taps_w - lacks_column;
#else
          const int taps_w = phase.taps_w;
#endif
          // Pixels from the chunk's first: a row of taps reads from `needed` on, and `row_extent` of them.
          const int first = segment * plan.segment_pixels + phase.first_pixel;
          int needed = origin + first;
          const int row_extent = plan.segment_pixels + (taps_w - 1) * plan.tap_step_w;
          int top = wrapped(tile_pixel + first);
          int previous = -1;
          const bool hands_over = alternate && ends && ic_block == plan.num_ic_blocks - 1;
          const auto multiply_next_tap = [&](auto steps, int pixel, bool is_last) {
            // Before the last tap: the other warpgroup takes its time to begin.
            if (hands_over && is_last && elected) mbarrier_arrive(shared.turn + 8 * (warpgroup ^ 1));
            if (!resident) mbarrier_wait(shared.weight_full + 8 * stage.slot, stage.parity);
            const uint32_t a = uniform(weights_low + stage.slot * (kTapBytes >> 4));
            const uint32_t b = uniform(part_low + pixel * (kPixelBytes >> 4));
            if constexpr (decltype(steps)::value > 0) {
              multiply_tap<N, decltype(steps)::value, kBFloat16>(acc[part], a, b);
            } else {
              with_steps(in_channels,
                         [&](auto here) { multiply_tap<N, decltype(here)::value, kBFloat16>(acc[part], a, b); });
            }
            if (resident) {  // nothing is given back: taps follow each other without a wait
              stage.slot += plan.blocks_per_sweep;
              return;
            }
            wgmma_wait<1>();  // the tap before this one is done with its stage
            if (previous >= 0 && elected) mbarrier_arrive(shared.weight_empty + 8 * previous);
            previous = stage.slot;
            if (stage.slot == last_stage) {
              stage.slot = first_stage;
              stage.parity ^= 1;
            } else {
              ++stage.slot;
            }
          };
          const auto multiply_window = [&](auto steps) {
            int tap_h = 0;
            do {
              units.await(shared, units_below(needed + row_extent), plan.ring_units);
              int pixel = top;
#ifdef TCONV_SKIPS_TAPS
              const bool last_row = tap_h + 1 == taps_h;
#else
              const bool last_row = tap_h + 1 == phase.taps_h;
#endif
              multiply_next_tap(steps, pixel, last_row && taps_w == 1);
              if (last_use) {
                if (resident) wgmma_wait<1>();
                units.release(shared, min(needed, tile_end) / kUnitPixels, plan.ring_units);  // the row before is done
              }
#pragma unroll 1
              for (int tap_w = 1; tap_w < taps_w; ++tap_w) {
                pixel = wrapped(pixel + plan.tap_step_w);
                multiply_next_tap(steps, pixel, last_row && tap_w + 1 == taps_w);
              }
              top = wrapped(top + row_step);
              needed += row_step;
#ifdef TCONV_SKIPS_TAPS
              if (resident) stage.slot += lacks_column * plan.blocks_per_sweep;
            } while (++tap_h < taps_h);
            if (resident) stage.slot += lacks_row * phase.taps_w * plan.blocks_per_sweep;
#else
            } while (++tap_h < phase.taps_h);
#endif
          };
          if constexpr (kPooled || kTwin) {  // decided tap by tap, or the compiler serialises the products
            multiply_window(std::integral_constant<int, 0>());
          } else {
            with_steps(in_channels, multiply_window);
          }
          if (ends && ic_block == plan.num_ic_blocks - 1) channels.load(args, at.group, channel0);
          wgmma_wait<0>();
          if (previous >= 0 && elected) mbarrier_arrive(shared.weight_empty + 8 * previous);
          if (last_use) {
            const int end = continues ? tile_end / kUnitPixels : units_below(origin + plan.tile_pixels + plan.reach);
            units.await(shared, end, plan.ring_units);  // also what only others read
            units.release(shared, end, plan.ring_units);
            if (continues) {
              tile_pixel = wrapped(tile_pixel + plan.tile_pixels);
            } else {
              units.ready = units.free = 0;
              tile_pixel = units.next_free * kUnitPixels;
            }
          }
          ++ic_block;
        }
      }
      if (!tapped) channels.load(args, at.group, channel0);  // bias alone
#pragma unroll
      for (int part = 0; part < kParts; ++part) pin_registers(acc[part]);
      int chunk = at.chunk;  // worked out anew, so that its place takes no registers while multiplying
      asm volatile("" : "+r"(chunk));
#ifdef TCONV_JOINS_COLUMNS
      TileCursor place = finishing_place<may_be_apart<N, kTwin, Storage>()>(plan, at, chunk);
#else
      TileCursor place(plan, chunk);
#endif
      place.tile = at.tile;
#ifdef TCONV_REDUCES_CHANNELS
      if (reduces_channels(N) && args.extremum != kNoExtremum) {
        store_extrema<N, kParts>(args, shared, place, phase_index, channel0, segment, channels, acc);
        phase_index = (phase_index + kParts) % plan.num_phases, sweep += phase_index == 0;
        continue;
      }
#endif
      if constexpr (kTwin) {
        finish_twin_segment<N, Storage>(args, shared, place, phase_index, channel0, segment, channels, acc[0], acc[1]);
      } else {
#ifdef TCONV_JOINS_COLUMNS
        finish_any_segment<N, kPooled>(args, shared, place, phase_index, channel0, segment, channels, acc[0]);
#else
        finish_segment<N, kPooled, Storage>(args, shared, place, phase_index, channel0, segment, channels, acc[0]);
#endif
      }
      phase_index += kParts;
      if (phase_index == plan.num_phases) {
        phase_index = 0;
        ++sweep;
      }
    } while (sweep < plan.num_sweeps);
  }
}

template <int kShapeIndex, bool kPooled, typename Storage>
__global__ void __launch_bounds__(HopperConfig<kShapeIndex, Storage>::kThreads, 1)
    conv_transpose_hopper_kernel(const __grid_constant__ HopperArgs<Storage> args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Config = HopperConfig<kShapeIndex, Storage>;
  extern __shared__ __align__(1024) char storage[];
  const Plan& plan = args.plan;
  const Shared shared = shared_layout(args, smem_address(storage));
  if (shared.ring % 1024 != 0) __trap();  // the swizzle goes by address bits
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (int i = 0; i < plan.ring_units; ++i) {
      mbarrier_init(shared.unit_full + 8 * i, 32 * kBatchesPerUnit * plan.ring_ic_blocks);
      mbarrier_init(shared.unit_empty + 8 * i, Config::kConsumerWarps);
    }
#ifdef TCONV_REDUCES_CHANNELS
    for (int i = 0; i < Config::kConsumers; ++i) mbarrier_init(shared.reduced + 8 * i, 128);
#endif
    // The warps of the other warpgroup.
    for (int i = 0; i < Config::kConsumers; ++i) mbarrier_init(shared.turn + 8 * i, 4);
    for (int i = 0; i < plan.weight_stages; ++i) {
      mbarrier_init(shared.weight_full + 8 * i, 1);
      // The warps that multiply by one block's weights.
      mbarrier_init(shared.weight_empty + 8 * i, 4 * plan.num_segments);
    }
    fence_barrier_init();
  }
  __syncthreads();

  // Told to the compiler as the same for a warp: what follows from it goes to uniform registers.
  const int warpgroup = __shfl_sync(0xFFFFFFFFu, threadIdx.x / 128, 0);
  if (warpgroup >= Config::kConsumers) {
    set_registers<Config::kLaunchRegisters, Config::kProducerRegisters>();
    // The last warp streams weights. Where they are resident it soon has nothing to stream, and loads pixels too.
    const int producer = warp - Config::kConsumerWarps;
    const int data_warps = plan.resident_weights ? Config::kProducerWarps : Config::kProducerWarps - 1;
    if (producer == Config::kProducerWarps - 1 && lane < plan.blocks_per_sweep) {
      await_previous_kernels();  // the weight transform; pixels can be loaded meanwhile
      produce_weights(args, shared, lane);
    }
    if (producer >= data_warps) return;
    __syncwarp();
#ifdef TCONV_READS_PACKED
    if constexpr (!Config::kShape.twin)  // columns of planes are neighbours
      if (args.packed.segments != nullptr) return produce_packed(args, shared, producer, data_warps, lane);
#endif
    if constexpr (Config::kShape.scattered) {
      produce_pixels<1, false>(args, shared, producer, data_warps, lane);
    } else if (args.whole_batches) {
      // 32 registers each; with three there are spills.
      if constexpr (!Config::kShape.wide || sizeof(Storage) == 2) {
        if (plan.batches_in_flight == 2) return produce_pixels<2, true>(args, shared, producer, data_warps, lane);
      }
      produce_pixels<1, true>(args, shared, producer, data_warps, lane);
    } else {
      produce_pixels<1, false>(args, shared, producer, data_warps, lane);
    }
  } else {
    set_registers<Config::kLaunchRegisters, Config::kConsumerRegisters>();
    await_previous_kernels();  // the weights' scales
    consume<Config::kN, kPooled, Config::kShape.twin, Storage>(args, shared, warpgroup);
  }
#endif
}

}  // namespace hopper
}  // namespace cuda
}  // namespace tconv
