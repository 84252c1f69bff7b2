// The state of a slice's pixels: its guard is up where the weights' are, which all slices share, as they do the scale
// of g.
#pragma once

#include "overlapped_launch.cuh"
#include "weight_gradient_pack.cuh"

namespace tconv {
namespace cuda {

// What all slices share: a convolution's scale, of x and of g, and whether containers hold its weights.
struct SharedGuards {
  GuardState of_x, of_planes;
};

// keeps: what the guard says already.
__global__ void begin_slice_kernel(GuardState* guard, const SharedGuards* shared, bool keeps) {
  await_previous_kernels();
  const int raised = shared->of_x.out_of_range | shared->of_planes.out_of_range;
  guard->out_of_range = keeps ? guard->out_of_range | raised : raised;
  guard->largest = shared->of_planes.largest;
}

inline int64_t launch_begin_slice(GuardState* guard, const SharedGuards* shared, bool keeps, void* stream) {
  return launch_overlapped(begin_slice_kernel, dim3(1), dim3(1), 0, stream, guard, shared, keeps);
}

}  // namespace cuda
}  // namespace tconv
