// What the weight gradient's tensor-core kernels share: a block's walk over rows of pixels, and where their segments lie.
#pragma once

#include "weight_gradient_layout.h"

namespace tconv {
namespace cuda {

// Strips of samples one after the other, row by row: part `split` of `num_splits` of all rows.
struct RowCursor {
  int row, strip, sample, left;

  __device__ __forceinline__ RowCursor(const WeightGradientLayout& layout, int num_rows, int split, int num_splits) {
    const int first = static_cast<int>(static_cast<int64_t>(num_rows) * split / num_splits);
    left = static_cast<int>(static_cast<int64_t>(num_rows) * (split + 1) / num_splits) - first;
    const int line = first / layout.x.rows;
    row = first - line * layout.x.rows;
    sample = line / layout.strips;
    strip = line - sample * layout.strips;
  }

  // Of those that are left, the rows in the strip that the cursor is in.
  __device__ __forceinline__ int rows_of_strip(const WeightGradientLayout& layout) const { return min(left, layout.x.rows - row); }

  // `count`: at most so many.
  __device__ __forceinline__ void skip(const WeightGradientLayout& layout, int count) {
    left -= count;
    row += count;
    if (row < layout.x.rows) return;
    row = 0;
    if (++strip < layout.strips) return;
    strip = 0;
    ++sample;
  }
};

// Segments of a pair of channel blocks.
struct SegmentPlace {
  int group, x_block, planes_block;

  __device__ __forceinline__ SegmentPlace(const WeightGradientLayout& layout, int pair) {
    const int blocks = pair / layout.planes.blocks;
    planes_block = pair - blocks * layout.planes.blocks;
    group = blocks / layout.x.blocks;
    x_block = blocks - group * layout.x.blocks;
  }

  __device__ __forceinline__ int64_t x(const WeightGradientLayout& layout, const RowCursor& at) const {
    return (((static_cast<int64_t>(at.sample) * layout.groups + group) * layout.x.blocks + x_block) * layout.strips + at.strip) *
               layout.x.rows +
           at.row;
  }
  // Of the plane row that tap row 0 reads.
  __device__ __forceinline__ int64_t planes(const WeightGradientLayout& layout, const RowCursor& at) const {
    return (((static_cast<int64_t>(at.sample) * layout.groups + group) * layout.planes.blocks + planes_block) * layout.strips +
            at.strip) *
               layout.planes.rows +
           at.row;
  }
};

}  // namespace cuda
}  // namespace tconv
