// Second stage of the weight gradient on tensor cores: the sums of all splits and warps of a tap, in a fixed order,
// unscaled, into
//   grad_weight [in_channels, out_channels/groups, kernel_h, kernel_w]
// A block has a row of a 64 x 64 tile: one in channel, 64 channels of the planes.
#pragma once

#include "../gradient_call.h"
#include "check.h"
#include "storage.cuh"
#include "weight_gradient_layout.h"
#include "weight_gradient_pack.cuh"

namespace tconv {
namespace cuda {

struct WeightGradientSumsConfig {
  static constexpr int kThreads = 256;
  static constexpr int kInFlight = 16;                                           // loads of a thread
  static constexpr int kRows = kThreads / WeightGradientConfig::kBlockChannels;  // of a tile, by one block
  static constexpr int kBlocksPerTile = WeightGradientConfig::kBlockChannels / kRows;
  static_assert(kRows == 4, "the kernel's order of rows");
};

// Where the parts of a tap lie: `first` tiles from the beginning, then `outer` x `inner` of them at these distances, in
// tiles.
struct TapParts {
  int64_t first;
  int outer, inner, outer_step, inner_step;
};

template <typename Storage, typename Places>
struct WeightGradientSumsArgs {
  WeightGradientLayout layout;
  Places places;  // places(pair of channel blocks, tap) -> TapParts; places.in_tile(row, column): a value's place in a
                  // tile
  const float* parts;
  Storage* grad_weight;
  int kernel_h, kernel_w, kernel_step_h, kernel_step_w, classes_w, ic_per_group, oc_per_group;
#ifdef TCONV_WALKS_DEPTH
  WeightPlaces weight;
  int classes_h;
#endif
  const GradientState* state;  // null: no scales
  const int* only_if;
};

template <typename Storage, typename Places>
__global__ void __launch_bounds__(WeightGradientSumsConfig::kThreads)
    sum_weight_gradient_kernel(const __grid_constant__ WeightGradientSumsArgs<Storage, Places> args) {
  using Config = WeightGradientSumsConfig;
#ifdef TCONV_GRADIENT_CHAINS
  await_previous_kernels();
#endif
  if (args.only_if != nullptr && *args.only_if == 0) return;
  const WeightGradientLayout& layout = args.layout;
  const int tile = blockIdx.x / Config::kBlocksPerTile;
  // Rows that lie side by side where fragments were stored: two neighbours, and those 8 below.
  const int block = blockIdx.x % Config::kBlocksPerTile, nth = threadIdx.x / WeightGradientConfig::kBlockChannels;
  const int row = block / 4 * 16 + block % 4 * 2 + nth % 2 + nth / 2 * 8;
  const int column = threadIdx.x % WeightGradientConfig::kBlockChannels;
  const int tap = tile % layout.taps(), pair = tile / layout.taps();
#ifdef TCONV_WALKS_DEPTH
  const int planes_block = pair % layout.planes.blocks, of_group = pair / layout.planes.blocks % layout.x_blocks();
  const int group = pair / layout.planes.blocks / layout.x_blocks();
  const int depth_tap = of_group / layout.x.blocks, x_block = of_group - depth_tap * layout.x.blocks;
#else
  const int planes_block = pair % layout.planes.blocks, x_block = pair / layout.planes.blocks % layout.x.blocks;
  const int group = pair / layout.planes.blocks / layout.x.blocks;
#endif
  __shared__ TapParts at;  // takes as long to work out as a few loads
  if (threadIdx.x == 0) at = args.places(pair, tap);
  __syncthreads();
#ifdef TCONV_WALKS_DEPTH
  const int of_tap = x_block * WeightGradientConfig::kBlockChannels + row;
  const int ic = depth_tap * layout.x.channels_per_group + of_tap;
  const int channel = planes_block * WeightGradientConfig::kBlockChannels + column;
  if (of_tap >= layout.x.channels_per_group || channel >= layout.planes.channels_per_group) return;
#else
  const int ic = x_block * WeightGradientConfig::kBlockChannels + row;
  const int channel = planes_block * WeightGradientConfig::kBlockChannels + column;
  if (ic >= args.ic_per_group || channel >= layout.planes.channels_per_group) return;
#endif
#ifdef TCONV_WALKS_DEPTH
  PlaneChannel to(channel, args.classes_w, args.oc_per_group);
  const int64_t class_d = to.class_h / args.classes_h;
  to.class_h -= class_d * args.classes_h;
  const int64_t place = args.weight.of_pair(group * args.ic_per_group + ic, to.oc, class_d);
  if (place < 0) return;
#else
  const PlaneChannel to(channel, args.classes_w, args.oc_per_group);
#endif
  const int kh = static_cast<int>(to.class_h) + tap / layout.taps_w * args.kernel_step_h;
  const int kw = static_cast<int>(to.class_w) + tap % layout.taps_w * args.kernel_step_w;
  if (kh >= args.kernel_h || kw >= args.kernel_w) return;

  const float* const from =
      args.parts + at.first * WeightGradientConfig::kTileValues + args.places.in_tile(row, column);
  double sum = 0.0;
  for (int inner = 0; inner < at.inner; ++inner) {
    const float* next = from + static_cast<int64_t>(inner) * at.inner_step * WeightGradientConfig::kTileValues;
    const int64_t step = static_cast<int64_t>(at.outer_step) * WeightGradientConfig::kTileValues;
#pragma unroll 1
    for (int outer = 0; outer < at.outer; outer += Config::kInFlight) {
      float parts[Config::kInFlight];
#pragma unroll
      for (int i = 0; i < Config::kInFlight; ++i, next += step) parts[i] = outer + i < at.outer ? *next : 0.0f;
#pragma unroll
      for (int i = 0; i < Config::kInFlight; ++i) sum += parts[i];
    }
  }
  // In fp64, where both scales together are a number.
  if (args.state != nullptr) sum = ldexp(sum, -args.state->x_exponent() - args.state->grad_exponent());
  const float v = static_cast<float>(sum);
#ifdef TCONV_WALKS_DEPTH
  args.grad_weight[place + kh * args.kernel_w + kw] = to_storage<Storage>(v);
#else
  const int64_t pair_of_channels = static_cast<int64_t>(group * args.ic_per_group + ic) * args.oc_per_group + to.oc;
  args.grad_weight[(pair_of_channels * args.kernel_h + kh) * args.kernel_w + kw] = to_storage<Storage>(v);
#endif
}

}  // namespace cuda
}  // namespace tconv
