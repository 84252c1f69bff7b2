// Host side of the Hopper weight gradient: what it can do, how much scratch it wants, its launches.
#pragma once

#ifdef TCONV_WALKS_DEPTH
#include "weight_gradient_all_rows.cuh"
#endif
#include "weight_gradient_hopper.cuh"
#include "weight_gradient_portable_launch.cuh"

namespace tconv {
namespace cuda {
namespace pixels {

struct HopperGradientPlan {
  bool usable;
  PackedGoes goes;
  int num_groups, x_slots, planes_slots;
  int first_split[WeightGradientHopperConfig::kMaxGroups + 1];
  int64_t smem_bytes, total_bytes;
};

// Splits of the runs of rows for each group of quads, as many as its share of the work, so that all blocks together
// fill the device. A row costs as much beside its products as those of kRowTaps taps.
inline void share_splits(HopperGradientPlan& plan, const QuadTable& table, int64_t most_splits, int sm_count) {
  constexpr int kRowTaps = 2;
  const int pairs = plan.goes.layout.pairs(), all_taps = plan.goes.layout.taps() + kRowTaps * plan.num_groups;
  const int blocks = std::max(sm_count / pairs, plan.num_groups);  // for each pair of channel blocks
  int taps = 0;
  plan.first_split[0] = 0;
  for (int group = 0; group < plan.num_groups; ++group) {
    taps += QuadGroup(table, group).taps + kRowTaps;
    // Every group has one at least; ends are rounded, so that the sum is what there is.
    const int after = plan.num_groups - 1 - group;
    int end = static_cast<int>((static_cast<int64_t>(blocks) * taps + all_taps / 2) / all_taps);
    end = std::min(std::max(end, plan.first_split[group] + 1), blocks - after);
    plan.first_split[group + 1] = static_cast<int>(std::min<int64_t>(end, plan.first_split[group] + most_splits));
  }
}

inline HopperGradientPlan hopper_gradient_plan(const ConvTransposeLayer& p, const SlidingLayer& sliding,
#ifdef TCONV_WALKS_DEPTH
                                               const DeviceLimits& device, bool may_narrow = false) {
#else
                                               const DeviceLimits& device) {
#endif
  using Config = WeightGradientHopperConfig;
  HopperGradientPlan plan{};
  if (device.compute_major != 9 || device.compute_minor != 0) return plan;
#ifdef TCONV_WALKS_DEPTH
  plan.goes = PackedGoes(p, sliding, 1, false, may_narrow);
#else
  plan.goes = PackedGoes(p, sliding, 1);
#endif
  const WeightGradientLayout& layout = plan.goes.layout;
  const QuadTable table(layout.taps_h, layout.taps_w);
#ifdef TCONV_WALKS_DEPTH
  plan.num_groups = layout.all_rows ? 1 : table.num_groups();
#else
  plan.num_groups = table.num_groups();
#endif
  constexpr int kMostPixelsBetweenTaps = 0x3FFF * 16 / WeightGradientConfig::kPixelBytes;  // what a descriptor can say
  if (plan.num_groups > Config::kMaxGroups || layout.step_w > kMostPixelsBetweenTaps) return plan;
  int span = 0;  // rows of the planes between the first and the last that a row of pixels reads
  for (int group = 0; group < plan.num_groups; ++group)
    span = std::max(span, QuadGroup(table, group).row_span * layout.step_h);
#ifdef TCONV_WALKS_DEPTH
  if (layout.all_rows) span = QuadGroup::of_all(table).row_span * layout.step_h;
#endif
  // As many rows ahead as there is room for, up to what hides the copies' latency.
  for (int ahead = Config::kTargetSlots; ahead >= 2 && !plan.usable; --ahead) {
    plan.x_slots = ahead, plan.planes_slots = span + ahead;
    plan.smem_bytes =
        plan.x_slots * (layout.x.segment_bytes + 16) + plan.planes_slots * (layout.planes.segment_bytes + 16);
#ifdef TCONV_WALKS_DEPTH
    if (layout.narrow) plan.smem_bytes += Rings::kBoundary;
#endif
    plan.usable = plan.planes_slots <= Config::kMaxSlots && plan.smem_bytes <= device.smem_per_block;
  }
  if (!plan.usable || std::max(layout.x.segment_bytes, layout.planes.segment_bytes) > device.smem_per_block) {
    plan.usable = false;
    return plan;
  }
  share_splits(plan, table, int64_t{layout.strips} * layout.runs * plan.goes.samples, device.sm_count);
#ifdef TCONV_WALKS_DEPTH
  if (layout.all_rows)
    plan.first_split[1] = static_cast<int>(std::min<int64_t>(std::max(1, device.sm_count / layout.pairs()),
                                                             int64_t{layout.strips} * layout.runs * plan.goes.samples));
  plan.total_bytes = plan.goes.total_bytes + int64_t{plan.first_split[plan.num_groups]} * layout.pairs() *
                                                 Config::kConsumers * warpgroup_tiles(layout) *
                                                 WeightGradientConfig::kTileValues *
                                                 static_cast<int64_t>(sizeof(float));
#else
  plan.total_bytes = plan.goes.total_bytes +
                     int64_t{plan.first_split[plan.num_groups]} * layout.pairs() * Config::kConsumers *
                         Config::kMaxTaps * WeightGradientConfig::kTileValues * static_cast<int64_t>(sizeof(float));
#endif
  return plan;
}

// Where the Hopper kernel leaves the parts of a tap.
struct HopperPlaces {
  int taps_h, taps_w, num_pairs;
  int first_split[WeightGradientHopperConfig::kMaxGroups + 1];
#ifdef TCONV_WALKS_DEPTH
  int all_rows_tiles = 0;  // of a warpgroup that has all taps
#endif

  // As accumulators lie in a warpgroup's registers, four values of a thread side by side.
  __device__ __forceinline__ static int in_tile(int row, int column) {
    const int thread = row / 16 * 32 + row % 8 * 4 + column % 8 / 2;
    return (column / 8 * 128 + thread) * 4 + row / 8 % 2 * 2 + column % 2;
  }

  __device__ __forceinline__ TapParts operator()(int pair, int tap) const {
    using Config = WeightGradientHopperConfig;
#ifdef TCONV_WALKS_DEPTH
    if (all_rows_tiles > 0) {
      const int of_block = Config::kConsumers * all_rows_tiles;
      return {static_cast<int64_t>(pair) * of_block + tap, first_split[1], Config::kConsumers, num_pairs * of_block,
              all_rows_tiles};
    }
#endif
    const QuadTable table(taps_h, taps_w);
    const int tap_row = tap / taps_w, tap_column = tap - tap_row * taps_w;
    const int index = table.index_of(tap_row, tap_column);
    int group_index = 0;
    while (index >= table.group_begin(group_index + 1)) ++group_index;
    const QuadGroup group(table, group_index);
    constexpr int kTilesPerBlock = Config::kConsumers * Config::kMaxTaps;
    TapParts at;
    at.first = (static_cast<int64_t>(first_split[group_index]) * num_pairs + pair) * kTilesPerBlock +
               (index - group.begin) * Config::kMaxTaps + tap_column - table[index].first_column;
    at.outer = first_split[group_index + 1] - first_split[group_index], at.outer_step = num_pairs * kTilesPerBlock;
    at.inner = group.ways, at.inner_step = group.count * Config::kMaxTaps;
    return at;
  }
};

#ifdef TCONV_GRADIENT_CHAINS
// Of `count` images that lie packed; accumulate: to those before. skip_if: not where it is set.
template <bool kBFloat16>
int64_t launch_products(const GradientCall& call, const HopperGradientPlan& plan, const PackedGoes& goes,
                        void* workspace, int count, bool accumulate, const int* skip_if) {
  using Config = WeightGradientHopperConfig;
  WeightGradientHopperArgs args{};
  args.layout = goes.layout;
  args.x = goes.x(workspace), args.planes = goes.planes(workspace), args.parts = goes.parts(workspace);
  args.num_samples = static_cast<int>(goes.layout.samples(count));
  args.num_groups = plan.num_groups;
  std::copy(plan.first_split, plan.first_split + plan.num_groups + 1, args.first_split);
  args.x_slots = plan.x_slots, args.planes_slots = plan.planes_slots;
  args.accumulate = accumulate, args.skip_if = skip_if;
  const auto kernel = weight_gradient_hopper_kernel<kBFloat16>;
  TCONV_RETURN_IF_ERROR(allow_dynamic_smem(kernel, plan.smem_bytes));
  return launch_overlapped(kernel, dim3(static_cast<unsigned>(plan.first_split[plan.num_groups] * goes.layout.pairs())),
                           dim3(Config::kThreads), plan.smem_bytes, call.conv.stream, args);
}

template <typename Storage>
int64_t launch_hopper_sums(const GradientCall& call, const SlidingLayer& sliding, const HopperGradientPlan& plan,
                           const float* parts, const GradientState* state) {
  const WeightGradientLayout& layout = plan.goes.layout;
  HopperPlaces places{layout.taps_h, layout.taps_w, layout.pairs(), {}};
  std::copy(plan.first_split, plan.first_split + plan.num_groups + 1, places.first_split);
#ifdef TCONV_WALKS_DEPTH
  if (layout.all_rows) places.all_rows_tiles = warpgroup_tiles(layout);
#endif
  return launch_weight_gradient_sums<Storage>(call, sliding, layout, places, parts, state, nullptr);
}

#endif
// Operands in 16 bits, with `state` scaled containers. after_go(first image, images): launches what else the packed
// pixels serve.
template <bool kBFloat16, typename Storage, typename AfterGo>
int64_t launch_weight_gradient_hopper(const GradientCall& call, const SlidingLayer& sliding,
                                      const HopperGradientPlan& plan, void* workspace, GradientState* state,
                                      const AfterGo& after_go) {
#ifndef TCONV_GRADIENT_CHAINS
  using Config = WeightGradientHopperConfig;
#endif
  const PackedGoes& goes = plan.goes;
  const int64_t batch = call.conv.layer.batch;
  for (int64_t first = 0; first < batch; first += goes.images) {
    const int count = static_cast<int>(std::min<int64_t>(goes.images, batch - first));
#ifdef TCONV_PAIRS_CLASSES
    TCONV_RETURN_IF_ERROR((launch_pack<1, Storage, true>(call, sliding, goes, first, count, workspace, state)));
#else
    TCONV_RETURN_IF_ERROR((launch_pack<1, Storage>(call, sliding, goes, first, count, workspace, state)));
#endif
#ifdef TCONV_GRADIENT_CHAINS
    TCONV_RETURN_IF_ERROR(launch_products<kBFloat16>(call, plan, goes, workspace, count, first > 0, nullptr));
#else
    WeightGradientHopperArgs args{};
    args.layout = goes.layout;
    args.x = goes.x(workspace), args.planes = goes.planes(workspace), args.parts = goes.parts(workspace);
    args.num_samples = static_cast<int>(goes.layout.samples(count));
    args.num_groups = plan.num_groups;
    std::copy(plan.first_split, plan.first_split + plan.num_groups + 1, args.first_split);
    args.x_slots = plan.x_slots, args.planes_slots = plan.planes_slots;
    args.accumulate = first > 0;
    const auto kernel = weight_gradient_hopper_kernel<kBFloat16>;
    TCONV_RETURN_IF_ERROR(allow_dynamic_smem(kernel, plan.smem_bytes));
    TCONV_RETURN_IF_ERROR(
        launch_kernel(kernel, dim3(static_cast<unsigned>(plan.first_split[plan.num_groups] * goes.layout.pairs())),
                      dim3(Config::kThreads), plan.smem_bytes, call.conv.stream, args));
#endif
    TCONV_RETURN_IF_ERROR(after_go(first, count));
  }
#ifdef TCONV_GRADIENT_CHAINS
  return launch_hopper_sums<Storage>(call, sliding, plan, goes.parts(workspace), state);
#else
  HopperPlaces places{goes.layout.taps_h, goes.layout.taps_w, goes.layout.pairs(), {}};
  std::copy(plan.first_split, plan.first_split + plan.num_groups + 1, places.first_split);
#ifdef TCONV_WALKS_DEPTH
  if (goes.layout.all_rows) places.all_rows_tiles = warpgroup_tiles(goes.layout);
#endif
  return launch_weight_gradient_sums<Storage>(call, sliding, goes.layout, places, goes.parts(workspace), state,
                                              nullptr);
#endif
}

}  // namespace pixels
}  // namespace cuda
}  // namespace tconv
