// What the kernels of a tail's gradients have in common: the steps' gradients, and sums that blocks leave part by part
// and that are added in fp64, in a fixed order.
#pragma once

#include "../tail_gradient_call.h"
#include "../epilogue.h"
#include "../elementwise/slopes.h"
#include "../generated_tail.h"
#include "channel_sums.cuh"

namespace tconv {
namespace cuda {

// Of the operands of a tail's steps; an array of none is not C++.
template <typename Step>
constexpr int kMostSums = Step::kVectors > 0 ? Step::kVectors : 1;

// float [num_sums][rows][columns] at the begin of the workspace, ahead of what a kind keeps besides.
struct TailSums {
  int64_t rows, columns;

  int64_t of_one() const { return rows * columns; }
  int64_t bytes(const TailGradientCall& call) const {
    return call.num_sums() * of_one() * static_cast<int64_t>(sizeof(float));
  }
  static float* parts(const TailGradientCall& call) { return static_cast<float*>(call.conv.workspace); }

  template <typename S>
  int64_t add_up(const TailGradientCall& call) const {
    auto* const to = static_cast<S*>(call.sums);
    for (int i = 0; i < call.num_sums(); ++i)
      if (call.wants(i))
        TCONV_RETURN_IF_ERROR(
            launch_channel_sums(parts(call) + i * of_one(), to + i * columns, rows, columns, call.conv.stream));
    return kOk;
  }
};

}  // namespace cuda
}  // namespace tconv
