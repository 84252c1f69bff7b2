// A guard that another one raises, too.
#pragma once

#include "check.h"
#include "fp16_containers.cuh"

namespace tconv {
namespace cuda {

__global__ void join_guard_kernel(const GuardState* from, GuardState* to) {
  if (from->out_of_range != 0) to->out_of_range = 1;
}

}  // namespace cuda
}  // namespace tconv
