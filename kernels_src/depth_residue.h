// The output slices of one residue modulo the stride in depth, as a walk over slices of x.
#pragma once

#include "call.h"

namespace tconv {

// All but its strides. axis.in, axis.out: slices of x and of the output.
inline DepthWalk residue_walk(const DepthAxis& axis, int64_t residue) {
  const AxisPhase phase = make_axis_phase(axis.out, axis.kernel, axis.stride, axis.padding, axis.dilation, residue);
  DepthWalk walk{};
  walk.slices = phase.out_count, walk.taps = phase.tap_count;
  walk.in_depth = axis.in, walk.kernel_depth = axis.kernel;
  walk.first = phase.offset_first - (phase.tap_count - 1) * phase.offset_step, walk.step = phase.offset_step;
  walk.kernel_first = phase.tap_first + (phase.tap_count - 1) * phase.tap_step, walk.kernel_step = phase.tap_step;
  // Taps that no slice reads through.
  while (walk.taps > 0 && walk.first + walk.slices <= 0)
    --walk.taps, walk.first += walk.step, walk.kernel_first -= walk.kernel_step;
  while (walk.taps > 0 && walk.first + (walk.taps - 1) * walk.step >= walk.in_depth) --walk.taps;
  return walk;
}

}  // namespace tconv
