// What the weight gradient's tensor-core kernels share: a block's walk over rows of pixels, and where their segments
// lie.
#pragma once

#include "weight_gradient_layout.h"

namespace tconv {
namespace cuda {

// Strips are cut into runs of rows, and a block takes one in as many as there are splits: blocks that have other taps
// or channels of the same pixels, and perhaps another number of splits, then pass over memory side by side.
struct RowCursor {
  int run, row, end_row, strip, sample;

  __device__ __forceinline__ RowCursor(const WeightGradientLayout& layout, int split) : run(split) { enter(layout); }

  __device__ __forceinline__ void enter(const WeightGradientLayout& layout) {
    const int line = run / layout.runs, nth = run - line * layout.runs;
    sample = line / layout.strips;
    strip = line - sample * layout.strips;
    row = nth * WeightGradientConfig::kRunRows;
    end_row = min(row + WeightGradientConfig::kRunRows, layout.x.rows);
  }

  __device__ __forceinline__ bool done(const WeightGradientLayout& layout, int samples) const {
    return run >= samples * layout.strips * layout.runs;
  }
  __device__ __forceinline__ void next_run(const WeightGradientLayout& layout, int splits) {
    run += splits;
    enter(layout);
  }
};

// Segments of a pair of channel blocks.
struct SegmentPlace {
  int group, x_block, planes_block;
#ifdef TCONV_WALKS_DEPTH
  int tap;  // of x
#endif

  __device__ __forceinline__ SegmentPlace(const WeightGradientLayout& layout, int pair) {
    const int blocks = pair / layout.planes.blocks;
    planes_block = pair - blocks * layout.planes.blocks;
#ifdef TCONV_WALKS_DEPTH
    group = blocks / layout.x_blocks();
    const int of_group = blocks - group * layout.x_blocks();
    tap = of_group / layout.x.blocks;
    x_block = of_group - tap * layout.x.blocks;
#else
    group = blocks / layout.x.blocks;
    x_block = blocks - group * layout.x.blocks;
#endif
  }

  __device__ __forceinline__ int64_t x(const WeightGradientLayout& layout, const RowCursor& at) const {
#ifdef TCONV_WALKS_DEPTH
    const int64_t sample = layout.x_image(at.sample, tap);
    return (((sample * layout.groups + group) * layout.x.blocks + x_block) * layout.strips + at.strip) * layout.x.rows +
           at.row;
#else
    return (((static_cast<int64_t>(at.sample) * layout.groups + group) * layout.x.blocks + x_block) * layout.strips +
            at.strip) *
               layout.x.rows +
           at.row;
#endif
  }
  // Of the plane row that tap row 0 reads.
  __device__ __forceinline__ int64_t planes(const WeightGradientLayout& layout, const RowCursor& at) const {
    return (((static_cast<int64_t>(at.sample) * layout.groups + group) * layout.planes.blocks + planes_block) *
                layout.strips +
            at.strip) *
               layout.planes.rows +
           at.row;
  }
};

#ifdef TCONV_GRADIENT_CHAINS
// Is nothing to be added? Parts that hold no sums yet are zeros then. The same on every thread of a block.
template <typename Config, typename Args>
__device__ __forceinline__ bool skips_products(const Args& args) {
  await_previous_kernels();
  if (args.skip_if == nullptr || *args.skip_if == 0) return false;
  constexpr int kValues = Config::kConsumers * Config::kMaxTaps * WeightGradientConfig::kTileValues;
  if (args.accumulate == 0)
    for (int i = threadIdx.x; i < kValues; i += Config::kThreads)
      args.parts[static_cast<int64_t>(blockIdx.x) * kValues + i] = 0.0f;
  return true;
}

#endif
}  // namespace cuda
}  // namespace tconv
