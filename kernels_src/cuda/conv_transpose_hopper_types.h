// What the Hopper kernel and its launcher read: compiled shapes, limits, and the plan of a call
// (conv_transpose_hopper_plan.h makes it and defines the terms). Plain C++.
#pragma once

#include "../call.h"
#ifdef TCONV_JOINS_COLUMNS
#include "../joined_columns.h"
#endif
#ifdef TCONV_PAIRS_ROWS
#include "../row_pairs.h"
#endif

namespace tconv {
namespace hopper {

constexpr int kBlockOC = 64;  // output channels of a warpgroup: wgmma's M
constexpr int kBlockIC = 64;  // channels of a window: 128 bytes of 16-bit values per pixel
#ifdef TCONV_WALKS_DEPTH
constexpr int kChunkIC = 8;  // channels that a producer thread takes
#endif
constexpr int kPixelBytes = 128;
constexpr int kTapBytes = kBlockOC * kPixelBytes;  // one tap's weights for 64 output channels
constexpr int kMaxPhases = 16;
constexpr int kUnitPixels = 64;    // of the window: what a full and an empty barrier stand for
constexpr int kBatchPixels = 32;   // what a data warp moves at once
constexpr int kMaxRingUnits = 28;  // what fits shared memory
constexpr int kMaxWeightStages = 32;
#ifdef TCONV_LOADS_AHEAD
constexpr int kMostWindows = 3;  // in a ring that takes blocks of channels one after the other
#endif
struct Shape {
  int consumers, n;
  int producer_warps;
  bool pools;      // compiled with the pooling epilogue too
  bool scattered;  // only for pixels that are loaded one by one, which takes twice the warps
  bool twin;       // only for columns two apart: n of either residue in a pass, interleaved before they are stored
  bool wide;       // consumers take registers from data warps, which in fp32 have them for one batch in flight
};
// The compiled kernels. Of two that cost the same the first is taken.
constexpr Shape kShapes[] = {{2, 216, 4, true, false, false, false}, {2, 256, 4, false, false, false, true},
                             {2, 128, 8, false, true, false, false}, {2, 128, 4, false, false, false, false},
                             {2, 104, 4, false, false, true, false}, {2, 64, 4, false, false, true, false}};
// Kernels that take images behind each other in a line: not those for many products, where the code for it slows the
// epilogue.
TCONV_HD constexpr bool stacks(int n) { return n <= 128; }
#ifdef TCONV_SHORT_PASSES
// Kernels of twin columns whose outputs leave from registers where rows are of an even number: more accumulators leave
// none for it.
TCONV_HD constexpr bool leaves_from_registers(int n) { return n <= 64; }
#endif
#ifdef TCONV_JOINS_QUADS
// Shared memory for the operands of one pass's outputs (conv_transpose_hopper_join_quads.cuh), behind a plan's own.
constexpr int kConsumerThreads = 256;
TCONV_HD constexpr int operand_bytes(int n, int value_bytes) { return kConsumerThreads * n * value_bytes; }
TCONV_HD constexpr int operands_begin(int smem_bytes) { return (smem_bytes + 15) / 16 * 16; }
#endif
#ifdef TCONV_JOINS_COLUMNS
TCONV_HD constexpr bool stores_joined(int n) { return n <= 128; }
#endif
// What is wanted of a convolution: its outputs; moments of each sample's, too, often or seldom; windows of them pooled,
// and moments.
enum class Outputs { kAlone, kWithMoments, kSeldomWithMoments, kPooled };
// Is the shape compiled for them, of values in 16 bits or in fp32? What is seldom wanted has one, because compiling
// takes its time.
TCONV_HD constexpr bool serves(Shape shape, Outputs outputs, bool sixteen_bit) {
#ifdef TCONV_BRANCHES
  // An epilogue that keeps a value for later has no registers beside that kernel's accumulators.
  if (shape.twin && shape.n > 64) return false;
#endif
#ifdef TCONV_FOLDED_NORM
  if (shape.twin && shape.n > 64) return false;  // nor has one with BatchNorm's four numbers of a channel
#endif
  if (shape.wide) return outputs == Outputs::kAlone;
  if (shape.n > 128 && outputs == Outputs::kAlone && sixteen_bit) return false;  // the wide one does
  if (outputs == Outputs::kPooled) return shape.pools;
  if (outputs == Outputs::kSeldomWithMoments) return shape.n == 128 && !shape.scattered;
  return outputs == Outputs::kAlone || !shape.twin;
}
#ifdef TCONV_TAKES_TURNS
// Compiled in turns, too: the kernel of most columns whose data warps have two batches under way.
TCONV_HD constexpr bool takes_turns(Shape shape, bool sixteen_bit) { return shape.n == (sixteen_bit ? 256 : 216); }
// Weights are streamed twice as fast; fp32 has no room for more than stages for a tap or two ahead.
constexpr int kLeastTurnStages = 6;
#endif
constexpr int kVectorPixels = 4;  // pixels that a producer thread loads at once

// Shared memory next to ring and weight stages: buffers of outputs on their way to memory, barriers.
constexpr int kStoreColumns = 64;
constexpr int kStoreChannels = 8;
constexpr int kStoreBytesPerWarp = kStoreChannels * (kStoreColumns + 8) * 4;
#ifdef TCONV_JOINS_COLUMNS
// Of 16-bit outputs of columns joined by twos (conv_transpose_hopper_two_columns.cuh).
constexpr int kTwoColumns = 128;
constexpr int kTwoColumnsBytesPerWarp = (kStoreChannels * kTwoColumns + 64) * 4;
#endif
// With pooling: 8 channels of a segment's column pairs, rows an odd number of 16 bytes, so that they spread over the
// banks.
TCONV_HD constexpr int pool_store_pitch(int n) { return n / 2 / 4 % 2 == 1 ? n / 2 : n / 2 + 4; }
#ifdef TCONV_REDUCES_CHANNELS
constexpr int kBarrierBytes = 2 * 8 * (kMaxRingUnits + kMaxWeightStages + 2);
#else
constexpr int kBarrierBytes = 2 * 8 * (kMaxRingUnits + kMaxWeightStages + 1);
#endif

struct Phase {
  int out_first_h, out_first_w;        // residues
  int out_count_h, out_count_w;        // outputs of this phase
  int taps_h, taps_w;                  // both 0 where either is
  int kernel_first_h, kernel_first_w;  // the smallest kernel row and column among them
  int row_shift, col_shift;            // of the line: where the first tap of output (0, 0) reads
  int first_pixel;                     // the same as pixels along the line
  int weight_base;                     // first weight tile of this phase, from the sweep's first
};

struct Plan {
  bool usable;
  const char* reason;  // why not usable
  int num_consumers;   // warpgroups that multiply
  int producer_warps;
  int n;              // columns of a segment's wgmma
  int twin;           // phases are multiplied in pairs, even and odd columns of the same rows, and stored together
  int tile_w, pitch;  // output columns of a strip; pixels of the line per row
  int line_samples;   // images behind each other in a line
  int image_rows;     // of the line, from one to the next
  int num_segments;
  int segment_pixels;  // of a segment's n: all, or with pooling the whole pairs of rows among them
  int tile_pixels;
  int pooled;      // outputs are 2 x 2 windows' largest (or smallest) values
  int reach;       // pixels of a window beyond its tile's, the most over phases
  int row_offset;  // input row of the line's row 0
  // Input column of the line's column 0 in strip 0; a multiple of kVectorPixels where the width is one.
  int col_offset;
  int tap_step_h, tap_step_w;             // rows / columns of the line between neighbouring taps
  int kernel_step_h, kernel_step_w;       // and of the kernel
  int num_phases, num_strips, num_tiles;  // phases that have outputs, row by row
  int last_tapped_phase;                  // with it a tile's window is used for the last time
  int line_tiles;   // places of a line among those of all, num_tiles or a few more that stay empty
  int range_tiles;  // neighbouring places of a strip's that a block takes at once
  int total_tiles;  // places of all lines
  int num_groups, in_channels_per_group, out_channels_per_group;
  int num_ic_blocks, num_sweeps, blocks_per_sweep;
  int window_units, ring_units, mirror_pixels;
  int ring_ic_blocks;     // side by side: all, or one
  int window_loads;       // how often a tile's window is loaded, block by block: once, where all lie side by side
  int ring_block_pixels;  // of one of them, the mirror included
  int store_bytes_per_warp;
  int batches_in_flight;  // of a data warp: loads under way
  int weight_stages;      // of kTapBytes; resident: all weights; otherwise each block of the sweep has a ring of
  int ring_stages;        // this many, so that warpgroups with different weights do not wait for each other
  int resident_weights;
#ifdef TCONV_TAKES_TURNS
  // clang-format off: solutions without turns have this text, too
#endif
  int alternate;             // warpgroups multiply in turns, and one stores its outputs while the other multiplies
#ifdef TCONV_TAKES_TURNS
  // clang-format on
  // In turns over one block of output channels (conv_transpose_hopper_turns.cuh): how far one moves on in the ring of
  // weights, stages beyond whole laps, and is the number of laps odd?
  int in_turns, turn_slots, turn_laps;
#endif
  int sweep_tiles;           // weight tiles of one sweep, blocks_per_sweep * kTapBytes each
  int64_t num_weight_tiles;  // of all sweeps and groups
  int ring_bytes, smem_bytes;
  double cost;
  Phase phases[kMaxPhases];
#ifdef TCONV_GATHERS_PIXELS
  int gathered_n;       // not 0: the gathered kernel's plan (gathered_plan.h), of so many pixels a tile
  int64_t pixel_bytes;  // what it reads, packed
  // Where even and odd columns of the output read the same pixels, a phase is both: two rows of a tile, eight apart,
  // are a channel's, so that one thread has two outputs next to each other. pair_columns: from the even one's kernel
  // column to the odd one's, or 0 where phases are not paired.
  int pair_columns;

  TCONV_HD int channel_of_row(int row) const { return pair_columns != 0 ? row / 16 * 8 + row % 8 : row; }
#endif
#ifdef TCONV_SPLITS_CHANNELS
  // Groups of the plan: of the layer's, the parts that its output channels are cut into (channel_parts.h), and of those
  // the residues in depth, powers of two of either.
  int split_bits;
#endif
#ifdef TCONV_WALKS_DEPTH
  int residue_bits;
#ifdef TCONV_GATHERS_PIXELS
  int tap_blocks;  // of the gathered kernel: of num_ic_blocks, those of a depth tap
#endif
#endif
#ifdef TCONV_PAIRS_ROWS
  RowPairs pairs;  // of a plan of pairs
#endif
#ifdef TCONV_JOINS_COLUMNS
  JoinedColumns joined;  // of a plan of joined columns
#endif

  TCONV_HD int64_t partials_per_sample() const {
    return static_cast<int64_t>(num_strips) * num_phases * num_tiles * num_segments;
  }
  TCONV_HD int num_ranges() const { return num_strips * ((total_tiles / num_strips + range_tiles - 1) / range_tiles); }
};

inline int ceil_div(int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b); }
TCONV_HD constexpr int round_up(int64_t a, int64_t b) { return static_cast<int>((a + b - 1) / b * b); }
inline int round_down(int64_t a, int64_t b) { return static_cast<int>(a >= 0 ? a / b * b : -((-a + b - 1) / b) * b); }

}  // namespace hopper
}  // namespace tconv
